"""Checkpoint to bundle: streamed into a folder beside the target, which gets its name only when all
of it is there.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bitmtp_edge import __version__
from bitmtp_edge.bundle import (
    BUNDLE_FILE,
    FORMAT,
    GRAPH_FILES,
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
from bitmtp_edge.layout import TILE_ROWS
from bitmtp_edge.operators import Node
from bitmtp_edge.progress import Progress
from bitmtp_edge.text.chat_template import ChatTemplate

from .checkpoints import open_checkpoint
from .checkpoints.base import ModelConfig, Stack
from .checkpoints.rotary import rotary_table
from .checkpoints.text_assets import TextAssets
from .graph import build_model, build_nodes
from .model_tensors import ModelTensors, model_tensors
from .quantize.nested import group_size_for, quantize_nested
from .quantize.smoothing import SmoothedCheckpoint, smooth
from .target_folder import LOCK_FILE, new_folder, publish, resolve_target
from .weights_file import WeightsWriter, lay_out

# A draft step of the CPU engine costs half an AR step, so with round-to-nearest bases two drafts
# pay best. The paper's 4, on GPUs and better bases, has its verify width too.
GAMMA = 2
FIRST_SEGMENT = 512
CHUNK = 128
DRAFT_WIDTHS = (1,)
VERIFY_WIDTHS = (1, 2, 3, 5, 9, 17, CHUNK)
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
    kv: str = "nested",
    context: int | None = None,
    force: bool = False,
) -> Bundle:
    """Exports the checkpoint at ``source`` (GGUF file or Hugging Face folder) as a bundle of nested
    weights.

    kv: "nested" or "fp16". context: tokens the bundle serves; None takes the checkpoint's. force:
    replace an existing bundle (a folder that is not a bundle is never replaced). Returns the
    finished bundle; on any failure the target is untouched. Raises UserError for a source that
    cannot be read, a target that may not be replaced, or a disk too small.
    """
    if importlib.util.find_spec("onnx") is None:  # told now, loaded when the weights are done
        raise missing_extra("onnx", "export")
    target = resolve_target(target, force)
    # Values that are not finite are refused by name; NumPy's own warnings would only add lines.
    with np.errstate(all="ignore"), open_checkpoint(source) as checkpoint:
        config = checkpoint.config
        context = _checked_context(config, context)
        replay = ReplayConfig(_segments(context), DRAFT_WIDTHS, VERIFY_WIDTHS)
        tensors = model_tensors(checkpoint, context + replay.max_width)
        text = checkpoint.text
        _check_stop_ids(text, config.vocab_size, checkpoint.where)
        if text.chat_template is not None:
            ChatTemplate(text.chat_template)
        text_files = _text_files(text, checkpoint.where)
        entries, size = lay_out(tensors.specs())
        needed = size + sum(map(len, text_files.values())) + SPARE_BYTES
        with new_folder(target, needed, force) as folder:
            _write_weights(folder / WEIGHTS_FILE, smooth(checkpoint), tensors, entries, size)
            for name, data in text_files.items():
                _write(folder / name, data)
            graphs = {role: build_nodes(config, entries, role, kv) for role in GRAPH_FILES}
            for role, nodes in graphs.items():
                model = build_model(nodes, entries, role)
                _write(folder / GRAPH_FILES[role], model.SerializeToString(deterministic=True))
            manifest = Manifest(
                FORMAT,
                VERSION,
                __version__,
                _facts(checkpoint.name, config, context, kv),
                tuple(sorted({node.op for nodes in graphs.values() for node in nodes})),
                replay,
                _decoding(text, kv),
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


def _check_stop_ids(text: TextAssets, vocab_size: int, where: str) -> None:
    ids = [*text.stop_ids, *([] if text.bos_id is None else [text.bos_id])]
    stray = [token for token in ids if not 0 <= token < vocab_size]
    if stray:
        raise UserError(
            f"{where}: special token id {stray[0]} is outside the model's vocabulary of "
            f"{vocab_size}"
        )


def _facts(name: str, config: ModelConfig, context: int, kv: str) -> ModelFacts:
    return ModelFacts(
        name=name,
        family=config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        context=context,
        weights="nested",
        kv=kv,
        tied_embeddings=config.tied,
        draft_rows_final=False,
        mask_embeddings=0,
        block_attention="causal",
    )


def _decoding(text: TextAssets, kv: str) -> DecodingDefaults:
    return DecodingDefaults(
        policy="nested",
        gamma=GAMMA,
        block=None,
        tau=None,
        min_prefix=None,
        kv4_from_segment=KV4_FROM_SEGMENT if kv == "nested" else None,
        recent_n=RECENT_TOKENS,
        stop_ids=tuple(text.stop_ids),
        bos_id=text.bos_id,
    )


def _record(node: Node) -> NodeRecord:
    return NodeRecord(node.op, node.name, node.inputs, node.outputs, dict(node.attributes))


def _write_weights(
    path: Path,
    checkpoint: SmoothedCheckpoint,
    tensors: ModelTensors,
    entries: Mapping[str, TensorEntry],
    size: int,
) -> None:
    total = sum(stack.rows * stack.width for stack in tensors.matrices.values())
    with (
        WeightsWriter(path, entries, size) as writer,
        Progress(total, "quantize", "weights") as progress,
    ):
        for name, stack in tensors.matrices.items():
            _write_matrix(writer, checkpoint, name, stack, progress)
        for name, stack in tensors.vectors.items():
            writer.write(name, checkpoint.vectors(stack))
        rope, head_dim = checkpoint.config.rope, tensors.head_dim
        for first in range(0, tensors.positions, ROTARY_BLOCK):
            last = min(first + ROTARY_BLOCK, tensors.positions)
            angles = rotary_table(rope, head_dim, first, last)
            if not np.isfinite(angles).all():
                raise UserError(
                    f"{checkpoint.where}: rotary angles are not finite; mend the settings: {rope}"
                )
            writer.write("rotary", angles, first)


def _write_matrix(
    writer: WeightsWriter,
    checkpoint: SmoothedCheckpoint,
    name: str,
    stack: Stack,
    progress: Progress,
) -> None:
    importance = checkpoint.importance(stack)
    group_size = group_size_for(stack.width)
    block_rows = max(BLOCK_WEIGHTS // stack.width // TILE_ROWS, 1) * TILE_ROWS
    source = f"{checkpoint.where}: " + ", ".join(part for part, _ in stack.parts)
    for first, weights in checkpoint.blocks(stack, block_rows):
        writer.write_nested(name, quantize_nested(weights, group_size, source, importance), first)
        progress.advance(weights.size)


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
