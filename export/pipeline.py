"""Checkpoint to bundle: streamed into a folder beside the target, which gets its name only when all
of it is there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

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
from bitmtp_edge.errors import UserError, describe_os_error
from bitmtp_edge.layout import TILE_ROWS
from bitmtp_edge.operators import Node
from bitmtp_edge.progress import Progress

from .checkpoints import open_checkpoint
from .checkpoints.base import ModelConfig, Stack
from .checkpoints.rotary import rotary_table
from .checkpoints.text_assets import TextAssets
from .graph import build_model, build_nodes
from .model_tensors import ModelTensors, model_tensors
from .quantize.nested import group_size_for, quantize_nested
from .quantize.smoothing import SmoothedCheckpoint, smooth
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
PARTIAL = ".partial"
_BUNDLE_FILES = {BUNDLE_FILE, WEIGHTS_FILE, TOKENIZER_FILE, TEMPLATE_FILE, *GRAPH_FILES.values()}


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
    target = Path(os.path.abspath(target))
    _check_target(target, force)
    with open_checkpoint(source) as checkpoint:
        config = checkpoint.config
        context = _checked_context(config, context)
        replay = ReplayConfig(_segments(context), DRAFT_WIDTHS, VERIFY_WIDTHS)
        tensors = model_tensors(checkpoint, context + replay.max_width)
        text = checkpoint.text
        _check_stop_ids(text, config.vocab_size, checkpoint.where)
        text_files = _text_files(text, checkpoint.where)
        entries, size = lay_out(tensors.specs())
        with _new_folder(target, size + sum(map(len, text_files.values())) + SPARE_BYTES) as folder:
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
            _publish(folder, target)
    return Bundle.open(target, check_hashes=False)


def _checked_context(config: ModelConfig, context: int | None) -> int:
    if context is None:
        return config.context
    if not 1 <= context <= config.longest_context:
        raise UserError(
            f"context {context} is out of range: this model takes 1 to {config.longest_context} "
            "tokens"
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
    )


def _decoding(text: TextAssets, kv: str) -> DecodingDefaults:
    return DecodingDefaults(
        policy="nested",
        gamma=GAMMA,
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
            writer.write("rotary", rotary_table(rope, head_dim, first, last), first)


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
    paths = sorted(folder.iterdir())
    return {path.name: FileEntry(path.stat().st_size, sha256_of(path)) for path in paths}


def _check_target(target: Path, force: bool) -> None:
    if not os.path.lexists(target):
        return
    if not _is_bundle(target):
        raise UserError(
            f"{target} exists and is not a bundle; choose another name, nothing was overwritten"
        )
    if not force:
        raise UserError(
            f"{target} exists; add --force to replace that bundle, or choose another name"
        )


def _is_bundle(path: Path) -> bool:
    try:
        value = json.loads((path / BUNDLE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(value, dict) and value.get("format") == FORMAT


@contextmanager
def _new_folder(target: Path, size: int) -> Iterator[Path]:
    """A fresh ``<target>.partial``, removed again on any failure. UserError where the disk is too
    small for ``size`` bytes.
    """
    folder = target.with_name(target.name + PARTIAL)
    try:
        _discard(folder)
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write beside {target}: {folder}: {error.strerror}") from None
    try:
        free = shutil.disk_usage(folder).free
        if free < size:
            raise UserError(
                f"{target}: the bundle needs {size >> 20} MiB, the disk has {free >> 20} MiB free"
            )
        yield folder
    except OSError as error:
        reason = describe_os_error(error)
        raise UserError(f"export to {target} failed: {reason}; nothing was left there") from None
    finally:
        # Published, it has its final name, and there is nothing left to discard.
        _discard(folder)


def _discard(folder: Path) -> None:
    """Removes what an interrupted export left. UserError for a folder that holds anything else."""
    if not os.path.lexists(folder):
        return
    if (
        folder.is_symlink()
        or not folder.is_dir()
        or any(path.name not in _BUNDLE_FILES for path in folder.iterdir())
    ):
        raise UserError(f"{folder} is in the way and was not made by an export; move it")
    shutil.rmtree(folder)


def _publish(folder: Path, target: Path) -> None:
    """Gives the finished folder its name; a bundle that had it is removed afterwards."""
    if not os.path.lexists(target):
        folder.rename(target)
        return
    replaced = target.with_name(target.name + ".replaced")
    if os.path.lexists(replaced):
        raise UserError(f"{replaced} is in the way; move it, then export again")
    target.rename(replaced)
    try:
        folder.rename(target)
    except OSError:
        replaced.rename(target)
        raise
    shutil.rmtree(replaced)
