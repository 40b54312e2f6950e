"""Checkpoint to bundle: streamed into a folder beside the target, which gets its name only when all
of it is there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.bundle import MASK_TABLE, Bundle
from bitmtp_edge.errors import UserError
from bitmtp_edge.layout import CODE_BITS, TILE_ROWS
from bitmtp_edge.progress import Progress
from bitmtp_edge.text.chat_template import ChatTemplate
from bitmtp_edge.text.tokenizer import Tokenizer

from .bundle_defaults import bundle_defaults
from .bundle_writer import Contents, replay_config, require_onnx, write_bundle
from .checkpoints import open_checkpoint
from .checkpoints.base import MASK_EMBEDDINGS, Checkpoint, ModelConfig, Stack
from .checkpoints.ternary import TernaryCheckpoint
from .checkpoints.text_assets import TextAssets
from .model_tensors import Matrix, ModelTensors, model_tensors
from .quantize.nested import quantize_nested
from .quantize.smoothing import SmoothedCheckpoint, smooth
from .target_folder import resolve_target
from .weights_file import WeightsWriter

BLOCK_WEIGHTS = 1 << 19  # weights quantised at once: small enough that the work stays in cache
LEAST_CONTEXT = 2  # a token of prompt and one of reply
MOST_CONTEXT = 1 << 24  # more than any model has; a damaged number would fill the disk with angles


def export_bundle(
    source: Path,
    target: Path,
    *,
    weights: str | None = None,
    kv: str | None = None,
    context: int | None = None,
    force: bool = False,
) -> Bundle:
    """Exports the checkpoint at ``source`` (GGUF file or Hugging Face folder) as a bundle: floating
    point as nested weights, trained ternary codes as they are.

    weights: "nested" or "ternary"; None takes what the checkpoint gives. kv: "nested" or "fp16";
    None is fp16 for ternary weights. context: tokens the bundle serves; None takes the
    checkpoint's. force: replace an existing bundle (a folder that is not a bundle is never
    replaced). Returns the finished bundle; on any failure the target is untouched. Raises UserError
    for a source that cannot be read or gives no such weights, a target that may not be replaced, or
    a disk too small.
    """
    require_onnx()
    target = resolve_target(target, force)
    # Values that are not finite are refused by name; NumPy's own warnings would only add lines.
    with np.errstate(all="ignore"), open_checkpoint(source) as checkpoint:
        config = checkpoint.config
        defaults = bundle_defaults(checkpoint, weights)
        context = _checked_context(config, context)
        positions = context + replay_config(defaults, context).max_width
        text = checkpoint.text
        contents = Contents(
            checkpoint.name,
            config,
            defaults,
            kv or defaults.kv,
            context,
            model_tensors(checkpoint, positions),
            text,
            checkpoint.where,
        )
        _check_ids(text, config.vocab_size, checkpoint.where)
        if text.chat_template is not None:
            ChatTemplate(text.chat_template)

        def fill(writer: WeightsWriter) -> None:
            _write_weights(writer, checkpoint, contents.tensors)

        return write_bundle(contents, target, force, fill)


def _checked_context(config: ModelConfig, context: int | None) -> int:
    context = config.context if context is None else context
    most = min(config.longest_context, MOST_CONTEXT)
    if not LEAST_CONTEXT <= context <= most:
        raise UserError(
            f"context {context} is out of range: this model takes {LEAST_CONTEXT} to {most} tokens"
        )
    return context


def _check_ids(text: TextAssets, vocab_size: int, where: str) -> None:
    """UserError where the model lacks a token that every text may have. What was added to the
    vocabulary may lie outside: some tokenizers name a padding token that no model ever sees."""
    learnt = Tokenizer(text.tokenizer_json, f"{where}: its tokenizer").learnt_size
    if learnt > vocab_size:
        raise UserError(
            f"{where}: the tokenizer has {learnt} token ids, and the model only {vocab_size}: "
            "tokenizer and weights belong to different models"
        )
    ids = [*text.stop_ids, *([] if text.bos_id is None else [text.bos_id])]
    stray = [token for token in ids if not 0 <= token < vocab_size]
    if stray:
        raise UserError(
            f"{where}: special token id {stray[0]} is outside the model's vocabulary of "
            f"{vocab_size}"
        )


def _write_weights(writer: WeightsWriter, checkpoint: Checkpoint, tensors: ModelTensors) -> None:
    total = sum(m.stack.rows * m.stack.width for m in tensors.matrices.values())
    ternary = checkpoint if isinstance(checkpoint, TernaryCheckpoint) else None
    smoothed = None if ternary else smooth(checkpoint)
    with Progress(total, "pack" if ternary else "quantize", "weights") as progress:
        for name, matrix in tensors.matrices.items():
            if ternary:
                _copy_codes(writer, ternary, name, matrix, progress)
            elif smoothed:
                _quantize(writer, smoothed, name, matrix, progress)
    for name, stack in tensors.vectors.items():
        writer.write(name, (smoothed or checkpoint).vectors(stack))
    if tensors.masks:
        writer.write(MASK_TABLE, _mask_table(checkpoint, tensors.masks))


def _block_rows(stack: Stack) -> int:
    return max(BLOCK_WEIGHTS // stack.width // TILE_ROWS, 1) * TILE_ROWS


def _quantize(
    writer: WeightsWriter,
    checkpoint: SmoothedCheckpoint,
    name: str,
    matrix: Matrix,
    progress: Progress,
) -> None:
    stack = matrix.stack
    importance = checkpoint.importance(stack)
    source = f"{checkpoint.where}: " + ", ".join(part for part, _ in stack.parts)
    for first, weights in checkpoint.blocks(stack, _block_rows(stack)):
        codes = quantize_nested(weights, matrix.group_size, source, importance)
        planes = {"base": codes.base, "refinement": codes.refinement}
        writer.write_matrix(name, planes, CODE_BITS[matrix.kind], codes.scales, first)
        progress.advance(weights.size)


def _copy_codes(
    writer: WeightsWriter,
    checkpoint: TernaryCheckpoint,
    name: str,
    matrix: Matrix,
    progress: Progress,
) -> None:
    stack = matrix.stack
    for first, (codes, scales) in checkpoint.code_blocks(stack, _block_rows(stack)):
        writer.write_matrix(name, {matrix.kind: codes}, CODE_BITS[matrix.kind], scales, first)
        progress.advance(codes.size)


def _mask_table(checkpoint: Checkpoint, masks: int) -> NDArray[np.float32]:
    table = checkpoint.tensor_rows(MASK_EMBEDDINGS, 0, masks)
    if not np.isfinite(table).all():
        raise UserError(
            f"{checkpoint.where}: tensor {MASK_EMBEDDINGS} holds values that are not finite (NaN "
            "or infinity)"
        )
    return table
