"""Tiny random checkpoints for tests: Hugging Face folders and GGUF files of one and the same model.

Weights are whole multiples of 2**-10 with 127 of them in every 32 columns, so that F32, F16, BF16
and Q8_0 all store them exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.export import shapes, synthetic
from bitmtp_edge.export.checkpoints.ternary_folder import pack_ternary, write_ternary_checkpoint
from bitmtp_edge.text.tokenizer import byte_characters

Floats = NDArray[np.float32]
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, FEED, LAYERS, CONTEXT = 4, 2, 64, 128, 192, 2, 1024
MERGES = ("t h", "i n", "h e", "a n", "Ġ t", "Ġt h", "e r", "Ġ a")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def vocabulary() -> list[str]:
    """Special tokens, 256 bytes, merges, and unused tokens up to an odd size."""
    merged = [merge.replace(" ", "") for merge in MERGES]
    tokens = [*SPECIAL, *byte_characters().values(), *merged]
    return tokens + [f"<unused{i}>" for i in range(301 - len(tokens))]


VOCABULARY = len(vocabulary())


def config(family: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config.json; ``changes`` replace values, and None removes one."""
    values: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        **changes,
    }
    return {key: value for key, value in values.items() if value is not None}


def _matrix(random: np.random.Generator, rows: int, width: int) -> Floats:
    steps = np.clip(np.rint(random.normal(0, 40, (rows, width))), -127, 127)
    steps[:, ::32] = 127 * random.choice([-1, 1], steps[:, ::32].shape)
    return np.asarray(steps * 2.0**-10, np.float32)


def tensors(values: Mapping[str, Any], seed: int = 0) -> dict[str, Floats]:
    """Random weights for ``values`` (a config), by their names in a Hugging Face checkpoint."""
    random = np.random.default_rng(seed)
    hidden, feed = values["hidden_size"], values["intermediate_size"]
    head_dim = values["head_dim"]
    query, kv = values["num_attention_heads"] * head_dim, values["num_key_value_heads"] * head_dim

    def vector(size: int) -> Floats:
        return np.asarray(1 + random.integers(-64, 65, size) * 2.0**-7, np.float32)

    found = {
        "model.embed_tokens.weight": _matrix(random, values["vocab_size"], hidden),
        "model.norm.weight": vector(hidden),
    }
    if not values["tie_word_embeddings"]:
        found["lm_head.weight"] = _matrix(random, values["vocab_size"], hidden)
    for index in range(values["num_hidden_layers"]):
        prefix = f"model.layers.{index}."
        shapes = {
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, query),
            "mlp.gate_proj": (feed, hidden),
            "mlp.up_proj": (feed, hidden),
            "mlp.down_proj": (hidden, feed),
        }
        for name, shape in shapes.items():
            found[f"{prefix}{name}.weight"] = _matrix(random, *shape)
            if values["model_type"] == "qwen2" and name[10:] in ("q_proj", "k_proj", "v_proj"):
                found[f"{prefix}{name}.bias"] = vector(shape[0])
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}{name}.weight"] = vector(hidden)
        if values["model_type"] == "qwen3":
            found[f"{prefix}self_attn.q_norm.weight"] = vector(head_dim)
            found[f"{prefix}self_attn.k_norm.weight"] = vector(head_dim)
    return found


def tokenizer_json() -> str:
    """A byte-level tokenizer over :func:`vocabulary`."""
    byte_level = {"add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {
                    "id": index,
                    "content": token,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for index, token in enumerate(SPECIAL)
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", **byte_level},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", **byte_level},
            "model": {
                "type": "BPE",
                "vocab": {token: index for index, token in enumerate(vocabulary())},
                "merges": list(MERGES),
            },
        }
    )


def encode_tensor(values: Floats, dtype: str) -> bytes:
    """Little-endian bytes of ``values`` as F32, F16 or BF16."""
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write_safetensors(path: Path, found: Mapping[str, Floats], dtype: str = "F16") -> None:
    """Writes one safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in found.items():
        encoded = encode_tensor(values, dtype)
        offsets = [len(data), len(data) + len(encoded)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        data += encoded
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@dataclass(frozen=True)
class Tiny:
    """A checkpoint on disk and what it was made of."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Floats] = field(repr=False)


def write_folder(
    folder: Path,
    family: str = "llama",
    *,
    dtype: str = "F16",
    shards: int = 1,
    seed: int = 0,
    **changes: Any,
) -> Tiny:
    """A Hugging Face folder; ``changes`` go to :func:`config`."""
    folder.mkdir(parents=True)
    values = config(family, **changes)
    found = tensors(values, seed)
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "tokenizer.json").write_text(tokenizer_json())
    named = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    if shards == 1:
        write_safetensors(folder / "model.safetensors", found, dtype)
        return Tiny(folder, values, found)
    weight_map = {}
    for index in range(shards):
        shard = f"model-{index + 1:05}-of-{shards:05}.safetensors"
        part = {name: found[name] for name in list(found)[index::shards]}
        write_safetensors(folder / shard, part, dtype)
        weight_map.update(dict.fromkeys(part, shard))
    index_file = folder / "model.safetensors.index.json"
    index_file.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return Tiny(folder, values, found)


def ternary_tensors(
    values: Mapping[str, Any], masks: int, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Random weights of a trained ternary checkpoint with ``masks`` mask embeddings: as its file
    stores them, and their fp32 values.
    """
    random = np.random.default_rng(seed)
    group = values["quantization_config"]["group_size"]
    stored: dict[str, Any] = {}
    found: dict[str, Floats] = {}
    for name, weights in tensors(values, seed).items():
        if weights.ndim == 1:
            stored[name] = found[name] = weights
            continue
        rows, width = weights.shape
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            codes = random.integers(-127, 128, weights.shape, np.int8)
            scales = random.uniform(1e-4, 2e-3, rows).astype(np.float16)
            steps = scales[:, None].astype(np.float32)
            stored[name] = codes
        else:
            codes = random.integers(-1, 2, weights.shape, np.int8)
            shape = (rows, -(-width // group)) if group else (1,)
            # Three octaves apart, so that parts of a fused projection cannot be mixed up.
            scales = (2.0 ** random.uniform(-6, -3, shape)).astype(np.float16)
            steps = np.repeat(scales.astype(np.float32), group or 1, axis=-1)
            steps = steps[..., :width] if group else steps
            stored[name] = pack_ternary(codes)
        stored[f"{name}_scale"] = scales
        found[name] = codes * steps
    if masks:
        table = random.normal(0, 0.05, (masks, values["hidden_size"])).astype(np.float32)
        stored["model.mask_embeddings.weight"] = found["model.mask_embeddings.weight"] = table
    return stored, found


def tiny_ternary(
    folder: Path,
    *,
    group_size: int = 64,
    block: int | None = 4,
    masks: int = 1,
    attention: str = "causal",
    seed: int = 0,
    **changes: Any,
) -> Tiny:
    """A trained ternary checkpoint; ``tensors`` are its fp32 view. block None: no mask embeddings.
    ``changes`` go to :func:`config`.
    """
    values = config(**changes)
    values["quantization_config"] = {"quant_method": "bitmtp-ternary", "group_size": group_size}
    if block is not None:
        values["bitmtp"] = {"block": block, "block_attention": attention}
    stored, found = ternary_tensors(values, masks if block else 0, seed)
    named = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    texts = {"tokenizer.json": tokenizer_json(), "tokenizer_config.json": json.dumps(named)}
    write_ternary_checkpoint(folder, values, stored, texts)
    return Tiny(folder, values, found)


def tiny_synthetic(target: Path, name: str, **changes: Any) -> Bundle:
    """A bundle of random weights packed as those of the published model ``name``, with little of
    everything, and a vocabulary that fills no tile. ``changes`` go to its ``ModelConfig``.
    """
    shape = shapes.SHAPES[name]
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "num_kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": FEED,
        "context": 300,
        "longest_context": 300,
        **changes,
    }
    tiny = replace(shape, config=replace(shape.config, **sizes))
    with mock.patch.dict(shapes.SHAPES, {name: tiny}):
        return synthetic.write_synthetic(name, target)


def interleave(rows: Floats, heads: int) -> Floats:
    """Rows of ``heads`` heads from half-split to the pairs that GGUF stores for Llama."""
    split = rows.reshape(heads, 2, HEAD_DIM // 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """A tensor's name in GGUF."""
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, index, rest = stem.split(".", 3)
        return f"blk.{index}.{GGUF_NAMES[rest]}.{suffix}"
    return f"{GGUF_NAMES[stem]}.{suffix}"


def write_gguf(
    path: Path,
    family: str = "llama",
    *,
    kind: str = "Q8_0",
    seed: int = 0,
    extra: Mapping[str, Floats] | None = None,
    scaling: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Tiny:
    """A GGUF file of the model that :func:`write_folder` makes from the same arguments.

    kind: ggml type of the matrices. extra: further tensors under GGUF names. scaling: keys below
    ``<family>.rope.scaling``.
    """
    import gguf

    values = config(family, **changes)
    found = tensors(values, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(values["max_position_embeddings"])
    writer.add_embedding_length(values["hidden_size"])
    writer.add_block_count(values["num_hidden_layers"])
    writer.add_feed_forward_length(values["intermediate_size"])
    writer.add_head_count(values["num_attention_heads"])
    writer.add_head_count_kv(values["num_key_value_heads"])
    writer.add_key_length(values["head_dim"])
    writer.add_layer_norm_rms_eps(values["rms_norm_eps"])
    writer.add_rope_freq_base(values["rope_theta"])
    for key, value in (scaling or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{family}.rope.scaling.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = vocabulary()
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(list(MERGES))
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    matrix_type = gguf.GGMLQuantizationType[kind]
    for name, rows in found.items():
        stored = rows
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = HEADS if "q_proj" in name else KV_HEADS
            stored = interleave(rows, heads)
        if stored.ndim == 1:
            writer.add_tensor(gguf_name(name), stored)
        else:
            data = gguf.quants.quantize(stored, matrix_type)
            writer.add_tensor(gguf_name(name), data, raw_dtype=matrix_type)
    for name, more in (extra or {}).items():
        writer.add_tensor(name, more)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Tiny(path, values, found)
