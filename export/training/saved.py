"""A trained model as a checkpoint folder that ``bitmtp-edge export`` reads (docs/checkpoint.md)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoints.base import EMBEDDING, FINAL_NORM, HEAD, MASK_EMBEDDINGS, Checkpoint
from ..checkpoints.rotary import Rope
from ..checkpoints.ternary_folder import QUANT_METHOD, pack_ternary, write_ternary_checkpoint
from .model import Decoder, Product
from .quantizers import row_codes, ternary_codes
from .recipe import Recipe


def write_trained(
    folder: Path,
    model: Decoder,
    recipe: Recipe,
    checkpoint: Checkpoint,
    tokenizer_json: str,
    chat_template: str | None,
) -> None:
    """Writes config, packed weights and tokenizer to ``folder``, in place of what it held."""
    fresh, old = (folder.with_name(f"{folder.name}.{name}") for name in ("new", "old"))
    for left in (fresh, old):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    write_ternary_checkpoint(
        fresh,
        _config(model, recipe, checkpoint),
        trained_tensors(model, recipe, checkpoint),
        _text_files(checkpoint, tokenizer_json, chat_template),
    )
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _text_files(
    checkpoint: Checkpoint, tokenizer_json: str, chat_template: str | None
) -> dict[str, str]:
    text = checkpoint.text
    generation = {"eos_token_id": text.stop_ids}
    files = {"tokenizer.json": tokenizer_json, "generation_config.json": _json(generation)}
    if chat_template is not None:
        files["chat_template.jinja"] = chat_template
    return files


def _json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def trained_tensors(
    model: Decoder, recipe: Recipe, checkpoint: Checkpoint
) -> dict[str, NDArray[Any]]:
    """Codes, scales and vectors under the checkpoint's own tensor names."""
    tensors: dict[str, NDArray[Any]] = {}

    def table(name: str, values: Tensor) -> None:
        codes, scale = row_codes(values)
        tensors[name] = _array(codes, np.int8)
        tensors[f"{name}_scale"] = _array(scale, np.float16)

    def product(name: str, source: Product) -> None:
        assert source.group_size is not None
        codes, scale = ternary_codes(source.weight, source.group_size)
        tensors[name] = pack_ternary(_array(codes, np.int8))
        tensors[f"{name}_scale"] = _array(scale, np.float16)

    with torch.no_grad():
        table(EMBEDDING, model.embedding.float())
        if model.head is not None:
            table(HEAD, model.head.float())
        if model.mask_embedding is not None:
            tensors[MASK_EMBEDDINGS] = _array(model.mask_embedding, np.float32)
        tensors[FINAL_NORM] = _array(model.final_norm, np.float32)
        for index, layer in enumerate(model.layers):
            names = checkpoint.family.layer(model.config, index)
            products = {
                "qkv": list(layer.qkv),
                "o": [layer.o],
                "gate_up": [layer.gate, layer.up],
                "down": [layer.down],
            }
            for part, sources in products.items():
                for (name, _), source in zip(names.linears[part].parts, sources, strict=True):
                    product(name, source)
            for part, stack in names.vectors.items():
                tensors[stack.parts[0][0]] = _array(getattr(layer, part), np.float32)
    return tensors


def _array(values: Tensor, dtype: type[np.generic]) -> NDArray[Any]:
    return values.detach().cpu().numpy().astype(dtype)


def _config(model: Decoder, recipe: Recipe, checkpoint: Checkpoint) -> dict[str, Any]:
    config = model.config
    values: dict[str, Any] = {
        "_name_or_path": recipe.name,
        "architectures": [checkpoint.family.architecture],
        "model_type": checkpoint.family.name,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.epsilon,
        "rope_theta": config.rope.theta,
        "hidden_act": config.activation,
        "tie_word_embeddings": config.tied,
        "bos_token_id": checkpoint.text.bos_id,
        "quantization_config": {
            "quant_method": QUANT_METHOD,
            "group_size": recipe.student.group_size,
        },
    }
    if config.rope.kind != "default":
        values["rope_scaling"] = _rope_scaling(config.rope)
    if model.mask_embedding is not None:
        objective = recipe.objective
        values["bitmtp"] = {
            "block": objective.block,
            "block_attention": objective.block_attention,
        }
    return values


def _rope_scaling(rope: Rope) -> dict[str, Any]:
    """The ``rope_scaling`` of a config.json that reads as ``rope`` again."""
    if rope.kind == "divisors":
        return {"rope_type": rope.kind, "divisors": list(rope.divisors)}
    values: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind in ("llama3", "yarn"):
        values["original_max_position_embeddings"] = rope.original_context
    if rope.kind == "llama3":
        values |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
        }
    if rope.kind == "yarn":
        values |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow}
        if rope.attention_factor is not None:
            values["attention_factor"] = rope.attention_factor
    return values
