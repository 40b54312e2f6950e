"""From a pretrained checkpoint to the student that training starts with, and to its teacher."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bitmtp_edge.errors import UserError

from ..checkpoints.base import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    MASK_EMBEDDINGS,
    Checkpoint,
    ModelConfig,
    Stack,
)
from ..checkpoints.ternary import TernaryCheckpoint
from .model import Decoder
from .recipe import ObjectiveRecipe, StudentRecipe

CODES_IN_BYTE = 4


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
    _check_trainable(checkpoint)
    if isinstance(checkpoint, TernaryCheckpoint):
        _check_continued(checkpoint, recipe)
    for width in (config.hidden_size, config.query_width, config.intermediate_size):
        if recipe.group_size and width % recipe.group_size:
            raise UserError(
                f"{where}: groups of {recipe.group_size} do not divide a width of {width}: choose "
                "another student.group_size"
            )
        if width % CODES_IN_BYTE:
            raise UserError(
                f"{where}: a width of {width} is no multiple of {CODES_IN_BYTE}, the codes a byte "
                "holds"
            )
    vocabulary = recipe.vocabulary or config.vocab_size
    if vocabulary > config.vocab_size:
        raise UserError(
            f"{where} has {config.vocab_size} token ids, fewer than student.vocabulary = "
            f"{vocabulary}"
        )
    return replace(
        config,
        vocab_size=vocabulary,
        num_layers=len(kept_layers(config.num_layers, recipe.layers, where)),
        context=min(length, config.longest_context),
        longest_context=min(length, config.longest_context),
    )


def _check_trainable(checkpoint: Checkpoint) -> None:
    config, where = checkpoint.config, checkpoint.where
    if config.qkv_bias:
        raise UserError(f"{where}: attention biases are not trained; use a model without them")
    if config.activation != "silu":
        raise UserError(f"{where}: activation {config.activation!r} is not trained, only silu")


def _check_continued(checkpoint: TernaryCheckpoint, recipe: StudentRecipe) -> None:
    layer = checkpoint.family.layer(checkpoint.config, 0)
    found = checkpoint.code_format(layer.linears["o"].parts[0][0]).group_size
    if found != recipe.group_size:
        has = f"ternary groups of {found}" if found else "one ternary scale a tensor"
        raise UserError(
            f"{checkpoint.where} has {has}, not student.group_size = {recipe.group_size}: go on "
            f"with {found}, or start from a checkpoint that is not ternary"
        )
    masks = 1 if checkpoint.multi_token is None else checkpoint.multi_token.masks
    if masks > 1:
        raise UserError(
            f"{checkpoint.where} has {masks} mask embeddings: only one shared row is trained here"
        )


def build_student(
    checkpoint: Checkpoint, recipe: StudentRecipe, objective: ObjectiveRecipe, config: ModelConfig
) -> Decoder:
    """The student with the checkpoint's weights.

    The mask embedding starts as the mean of the table, which is no token's. A trained ternary
    checkpoint goes on from its own, and from weights that quantise to its codes and scales.
    """
    layers = kept_layers(checkpoint.config.num_layers, recipe.layers, checkpoint.where)
    masks = objective.mtp_weight > 0
    model = Decoder(config, recipe.group_size, masks)
    _load(model, checkpoint, layers)
    if model.mask_embedding is not None:
        if isinstance(checkpoint, TernaryCheckpoint) and checkpoint.multi_token is not None:
            model.mask_embedding.data = _rows(checkpoint, MASK_EMBEDDINGS, 1)
        else:
            model.mask_embedding.data = model.embedding.data.mean(0, keepdim=True)
    return model


def build_teacher(checkpoint: Checkpoint, config: ModelConfig) -> Decoder:
    """The whole checkpoint, not quantised; ``config`` is its own with the student's vocabulary."""
    _check_trainable(checkpoint)
    model = Decoder(config, None, masks=False)
    _load(model, checkpoint, list(range(config.num_layers)))
    return model.requires_grad_(False).eval()


def _load(model: Decoder, checkpoint: Checkpoint, layers: list[int]) -> None:
    config = model.config
    whole = checkpoint.config.vocab_size
    for name, table in ((EMBEDDING, model.embedding), (HEAD, model.head)):
        if table is not None:
            checkpoint.check(Stack(((name, whole),), config.hidden_size))
            table.data = _rows(checkpoint, name, config.vocab_size)
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
                if isinstance(checkpoint, TernaryCheckpoint) and product.group_size is not None:
                    product.weight.data = _latent(checkpoint, tensor, rows, product.group_size)
                else:
                    product.weight.data = _rows(checkpoint, tensor, rows)
        for name, stack in source.vectors.items():
            checkpoint.check(stack)
            getattr(target, name).data = torch.from_numpy(checkpoint.vectors(stack))


def _rows(checkpoint: Checkpoint, name: str, rows: int) -> Tensor:
    values = np.array(checkpoint.tensor_rows(name, 0, rows), np.float32)
    if not np.isfinite(values).all():
        raise UserError(
            f"{checkpoint.where}: tensor {name} holds values that are not finite (NaN or infinity)"
        )
    return torch.from_numpy(values)


def _latent(checkpoint: TernaryCheckpoint, name: str, rows: int, group_size: int) -> Tensor:
    """Weights whose absmean codes and scales are the ones stored.

    Code times scale is not enough: its mean magnitude is the scale times the share of codes that
    are not 0, so the scale would shrink by that share.
    """
    codes, scales = checkpoint.codes(name, 0, rows)
    used = np.abs(codes).astype(np.float64)
    if group_size:
        share = used.reshape(rows, -1, group_size).mean(-1)
        step = np.repeat(scales / np.maximum(share, 1 / group_size), group_size, axis=1)
    else:
        step = scales / max(used.mean(), 1 / used.size)
    return torch.from_numpy(np.asarray(codes * step, np.float32))
