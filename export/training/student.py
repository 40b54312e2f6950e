"""From a pretrained checkpoint to the student that training starts with, and to its teacher."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bitmtp_edge.errors import UserError

from ..checkpoints.base import EMBEDDING, FINAL_NORM, HEAD, Checkpoint, ModelConfig, Stack
from .model import Decoder
from .recipe import ObjectiveRecipe, StudentRecipe


def kept_layers(count: int, kept: int | None, where: str) -> list[int]:
    """Indices of ``kept`` of ``count`` layers, evenly spread, the first and the last among them."""
    if kept is None:
        return list(range(count))
    if kept > count:
        raise UserError(f"{where} has {count} layers, fewer than student.layers = {kept}")
    return [round(index) for index in np.linspace(0, count - 1, kept)]


def student_config(checkpoint: Checkpoint, recipe: StudentRecipe, length: int) -> ModelConfig:
    """The student's shapes. Its context is the rows it is trained on.

    UserError where the operators of a ternary bundle could not run it.
    """
    config, where = checkpoint.config, checkpoint.where
    if config.qkv_bias:
        raise UserError(f"{where}: attention biases are not trained; use a model without them")
    if config.activation != "silu":
        raise UserError(f"{where}: activation {config.activation!r} is not trained, only silu")
    for width in (config.hidden_size, config.query_width, config.intermediate_size):
        if recipe.group_size and width % recipe.group_size:
            raise UserError(
                f"{where}: groups of {recipe.group_size} do not divide a width of {width}: choose "
                "another student.group_size"
            )
    vocabulary = recipe.vocabulary or config.vocab_size
    if vocabulary > config.vocab_size:
        raise UserError(
            f"{where} has {config.vocab_size} token ids, fewer than student.vocabulary = {vocabulary}"
        )
    return replace(
        config,
        vocab_size=vocabulary,
        num_layers=len(kept_layers(config.num_layers, recipe.layers, where)),
        context=min(length, config.longest_context),
        longest_context=min(length, config.longest_context),
    )


def build_student(
    checkpoint: Checkpoint, recipe: StudentRecipe, objective: ObjectiveRecipe, config: ModelConfig
) -> Decoder:
    """The student with the checkpoint's weights; the mask embedding starts as the mean of the table,
    which is no token's."""
    layers = kept_layers(checkpoint.config.num_layers, recipe.layers, checkpoint.where)
    masks = objective.mtp_weight > 0
    model = Decoder(config, recipe.group_size, masks)
    _load(model, checkpoint, layers)
    if model.mask_embedding is not None:
        model.mask_embedding.data.copy_(model.embedding.data.mean(0, keepdim=True))
    return model


def build_teacher(checkpoint: Checkpoint, config: ModelConfig) -> Decoder:
    """The whole checkpoint, not quantised; ``config`` is its own with the student's vocabulary."""
    model = Decoder(config, None, masks=False)
    _load(model, checkpoint, list(range(config.num_layers)))
    return model.requires_grad_(False).eval()


def _load(model: Decoder, checkpoint: Checkpoint, layers: list[int]) -> None:
    config = model.config
    model.embedding.data = _rows(checkpoint, EMBEDDING, config.vocab_size)
    if model.head is not None:
        model.head.data = _rows(checkpoint, HEAD, config.vocab_size)
    model.final_norm.data = torch.from_numpy(
        checkpoint.vectors(Stack(((FINAL_NORM, config.hidden_size),)))
    )
    for target, index in zip(model.layers, layers, strict=True):
        source = checkpoint.family.layer(checkpoint.config, index)
        parts = {
            "qkv": list(target.qkv),
            "o": [target.o],
            "gate_up": [target.gate, target.up],
            "down": [target.down],
        }
        for name, products in parts.items():
            stack = source.linears[name]
            checkpoint.check(stack)
            for product, (tensor, rows) in zip(products, stack.parts, strict=True):
                product.weight.data = _rows(checkpoint, tensor, rows)
        for name, stack in source.vectors.items():
            checkpoint.check(stack)
            getattr(target, name).data = torch.from_numpy(checkpoint.vectors(stack))


def _rows(checkpoint: Checkpoint, name: str, rows: int) -> Tensor:
    return torch.from_numpy(np.array(checkpoint.tensor_rows(name, 0, rows), np.float32))
