"""Checkpoint to bundle: streamed into a folder beside the target, which gets its name only when all
of it is there.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge import __version__
from bitmtp_edge.bundle import (
    BUNDLE_FILE,
    FORMAT,
    GRAPH_FILES,
    MASK_TABLE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    VERSION,
    WEIGHTS_FILE,
    Bundle,
    DecodingDefaults,
    FileEntry,
    Manifest,
    ModelFacts,
    NodeRecord,
    ReplayConfig,
    TensorEntry,
    sha256_of,
)
from bitmtp_edge.errors import UserError, missing_extra
from bitmtp_edge.layout import CODE_BITS, TILE_ROWS
from bitmtp_edge.operators import Node
from bitmtp_edge.progress import Progress
from bitmtp_edge.text.chat_template import ChatTemplate
from bitmtp_edge.text.tokenizer import Tokenizer

from .bundle_defaults import CHUNK, MIN_PREFIX, TAU, BundleDefaults, bundle_defaults
from .checkpoints import open_checkpoint
from .checkpoints.base import MASK_EMBEDDINGS, Checkpoint, ModelConfig, Stack
from .checkpoints.rotary import rotary_table
from .checkpoints.ternary import TernaryCheckpoint
from .checkpoints.text_assets import TextAssets
from .graph import build_model, build_nodes
from .model_tensors import Matrix, ModelTensors, model_tensors
from .quantize.nested import quantize_nested
from .quantize.smoothing import SmoothedCheckpoint, smooth
from .target_folder import LOCK_FILE, new_folder, publish, resolve_target
from .weights_file import WeightsWriter, lay_out

FIRST_SEGMENT = 512
# Below this a KV cache is small beside the weights, and reading its base plane alone saves nothing
# worth the acceptance.
KV4_FROM_SEGMENT = 4096
RECENT_TOKENS = 128
BLOCK_WEIGHTS = 1 << 19  # weights quantised at once: small enough that the work stays in cache
ROTARY_BLOCK = 4096
SPARE_BYTES = 16 << 20  # what the graphs and bundle.json may take
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
    if importlib.util.find_spec("onnx") is None:  # told now, loaded when the weights are done
        raise missing_extra("onnx", "export")
    target = resolve_target(target, force)
    # Values that are not finite are refused by name; NumPy's own warnings would only add lines.
    with np.errstate(all="ignore"), open_checkpoint(source) as checkpoint:
        config = checkpoint.config
        defaults = bundle_defaults(checkpoint, weights)
        kv = kv or defaults.kv
        context = _checked_context(config, context)
        replay = ReplayConfig(_segments(context), defaults.draft_widths, defaults.verify_widths)
        tensors = model_tensors(checkpoint, context + replay.max_width)
        text = checkpoint.text
        _check_ids(text, config.vocab_size, checkpoint.where)
        if text.chat_template is not None:
            ChatTemplate(text.chat_template)
        text_files = _text_files(text, checkpoint.where)
        entries, size = lay_out(tensors.specs())
        needed = size + sum(map(len, text_files.values())) + SPARE_BYTES
        with new_folder(target, needed, force) as folder:
            _write_weights(folder / WEIGHTS_FILE, checkpoint, tensors, entries, size)
            for name, data in text_files.items():
                _write(folder / name, data)
            graphs = {role: build_nodes(config, tensors, role, kv) for role in GRAPH_FILES}
            for role, nodes in graphs.items():
                model = build_model(nodes, entries, role)
                _write(folder / GRAPH_FILES[role], model.SerializeToString(deterministic=True))
            manifest = Manifest(
                FORMAT,
                VERSION,
                __version__,
                _facts(checkpoint, defaults, context, kv),
                tuple(sorted({node.op for nodes in graphs.values() for node in nodes})),
                replay,
                _decoding(text, defaults, kv),
                entries,
                {role: tuple(_record(node) for node in nodes) for role, nodes in graphs.items()},
                _file_entries(folder),
            )
            _write(folder / BUNDLE_FILE, manifest.to_json().encode())
            Bundle.open(folder, check_hashes=False)
            publish(folder, target)
    return Bundle.open(target, check_hashes=False)


def _checked_context(config: ModelConfig, context: int | None) -> int:
    context = config.context if context is None else context
    most = min(config.longest_context, MOST_CONTEXT)
    if not LEAST_CONTEXT <= context <= most:
        raise UserError(
            f"context {context} is out of range: this model takes {LEAST_CONTEXT} to {most} tokens"
        )
    return context


def _segments(context: int) -> tuple[int, ...]:
    """History capacities: doubling from 512, the last one no longer than ``context`` asks for in
    whole chunks.
    """
    longest = -(-context // CHUNK) * CHUNK
    segments, segment = [], FIRST_SEGMENT
    while segment < longest:
        segments.append(segment)
        segment *= 2
    return (*segments, longest)


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


def _facts(checkpoint: Checkpoint, defaults: BundleDefaults, context: int, kv: str) -> ModelFacts:
    config, multi_token = checkpoint.config, defaults.multi_token
    return ModelFacts(
        name=checkpoint.name,
        family=config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        context=context,
        weights=defaults.weights,
        kv=kv,
        tied_embeddings=config.tied,
        draft_rows_final=defaults.draft_rows_final,
        mask_embeddings=multi_token.masks if multi_token else 0,
        block_attention=multi_token.attention if multi_token else "causal",
    )


def _decoding(text: TextAssets, defaults: BundleDefaults, kv: str) -> DecodingDefaults:
    multi_token = defaults.multi_token
    return DecodingDefaults(
        policy=defaults.policy,
        gamma=defaults.gamma,
        block=multi_token.block if multi_token else None,
        tau=TAU if multi_token else None,
        min_prefix=MIN_PREFIX if multi_token else None,
        # Drafts that read KV4 would not be final, and a ternary model's are worth more as they are.
        kv4_from_segment=(
            KV4_FROM_SEGMENT if kv == "nested" and not defaults.draft_rows_final else None
        ),
        recent_n=RECENT_TOKENS,
        stop_ids=tuple(text.stop_ids),
        bos_id=text.bos_id,
    )


def _record(node: Node) -> NodeRecord:
    return NodeRecord(node.op, node.name, node.inputs, node.outputs, dict(node.attributes))


def _write_weights(
    path: Path,
    checkpoint: Checkpoint,
    tensors: ModelTensors,
    entries: Mapping[str, TensorEntry],
    size: int,
) -> None:
    total = sum(m.stack.rows * m.stack.width for m in tensors.matrices.values())
    ternary = checkpoint if isinstance(checkpoint, TernaryCheckpoint) else None
    smoothed = None if ternary else smooth(checkpoint)
    with (
        WeightsWriter(path, entries, size) as writer,
        Progress(total, "pack" if ternary else "quantize", "weights") as progress,
    ):
        for name, matrix in tensors.matrices.items():
            if ternary:
                _copy_codes(writer, ternary, name, matrix, progress)
            elif smoothed:
                _quantize(writer, smoothed, name, matrix, progress)
        for name, stack in tensors.vectors.items():
            writer.write(name, (smoothed or checkpoint).vectors(stack))
        if tensors.masks:
            writer.write(MASK_TABLE, _mask_table(checkpoint, tensors.masks))
        rope, head_dim = checkpoint.config.rope, tensors.head_dim
        for first in range(0, tensors.positions, ROTARY_BLOCK):
            last = min(first + ROTARY_BLOCK, tensors.positions)
            angles = rotary_table(rope, head_dim, first, last)
            if not np.isfinite(angles).all():
                raise UserError(
                    f"{checkpoint.where}: rotary angles are not finite; mend the settings: {rope}"
                )
            writer.write("rotary", angles, first)


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


def _text_files(text: TextAssets, where: str) -> dict[str, bytes]:
    contents = {TOKENIZER_FILE: text.tokenizer_json, TEMPLATE_FILE: text.chat_template}
    try:
        return {name: value.encode() for name, value in contents.items() if value is not None}
    except UnicodeEncodeError:
        raise UserError(
            f"{where}: the tokenizer or the chat template holds half a surrogate pair, which is "
            "no text; repair that file"
        ) from None


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _file_entries(folder: Path) -> dict[str, FileEntry]:
    paths = sorted(path for path in folder.iterdir() if path.name != LOCK_FILE)
    return {path.name: FileEntry(path.stat().st_size, sha256_of(path)) for path in paths}
