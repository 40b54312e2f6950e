"""Bundles of random weights at the sizes of a published model, to measure steps with.

Codes are drawn once, into a pool of some megabytes a kind, and every tensor is runs of it: what a
kernel takes does not depend on their values, and drawing billions of them would take minutes.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.bundle import MASK_TABLE, WEIGHTS_FILE, Bundle, FileEntry
from bitmtp_edge.layout import CODE_BITS, TILE_ROWS, pack_weight
from bitmtp_edge.progress import Progress

from .bundle_defaults import NESTED_DEFAULTS, ternary_defaults
from .bundle_writer import (
    Contents,
    graphs_of,
    manifest_of,
    replay_config,
    require_onnx,
    write_bundle,
)
from .checkpoints.base import EMBEDDING, HEAD, Stack
from .checkpoints.ternary import MultiToken
from .checkpoints.text_assets import TextAssets
from .model_tensors import Matrix, ModelTensors, collect
from .shapes import shape_of
from .target_folder import resolve_target
from .weights_file import WeightsWriter, lay_out

POOL_WORDS = 1 << 20
# Lowest and highest code of a plane. With -8 in the base plane both planes together leave int8.
_CODES = {"ternary": (-1, 1), "base": (-7, 7), "refinement": (-8, 7), "int8": (-127, 127)}


def write_synthetic(name: str, target: Path) -> Bundle:
    """Writes a bundle of the sizes that :data:`shapes.SHAPES` has for ``name``; the same name
    always gives the same bytes.

    Its tokens are numbers, its drafts as good as its weights. Raises UserError for a name that is
    none, a target that exists, a disk too small, and where the package onnx is missing.
    """
    contents = synthetic_contents(name)
    require_onnx()
    target = resolve_target(target, force=False)
    return write_bundle(contents, target, False, lambda writer: _fill(writer, contents.tensors))


def describe_synthetic(name: str) -> Bundle:
    """The same bundle without files: its manifest, for what reads nothing else. UserError for a
    name that is none."""
    contents = synthetic_contents(name)
    entries, size = lay_out(contents.tensors.specs())
    files = {WEIGHTS_FILE: FileEntry(size, "")}
    return Bundle(Path(name), manifest_of(contents, graphs_of(contents), entries, files))


def synthetic_contents(name: str) -> Contents:
    """What the bundle of shape ``name`` holds. UserError for a name that is none."""
    shape = shape_of(name)
    config, block = shape.config, shape.block
    masks = 0 if block is None else 1
    defaults = NESTED_DEFAULTS
    if block is not None:
        defaults = ternary_defaults(MultiToken(block, "causal", masks))

    def matrix(stack: Stack) -> Matrix:
        table = stack.parts[0][0] in (EMBEDDING, HEAD)
        packed = shape.tables if table else shape.linears
        return Matrix(stack, packed.kind, packed.group_size)

    positions = config.context + replay_config(defaults, config.context).max_width
    return Contents(
        f"{name} (random weights)",
        config,
        defaults,
        defaults.kv,
        config.context,
        collect(config, shape.layer, matrix, masks, positions),
        TextAssets(_tokenizer_json(config.vocab_size), None, None, []),
        f"shape {name}",
    )


def _fill(writer: WeightsWriter, tensors: ModelTensors) -> None:
    random = np.random.default_rng(0)
    pools: dict[str, NDArray[np.int32]] = {}
    total = sum(matrix.stack.rows * matrix.stack.width for matrix in tensors.matrices.values())
    with Progress(total, "random weights", "weights") as progress:
        for name, matrix in tensors.matrices.items():
            for plane in matrix.planes:
                if plane not in pools:
                    pools[plane] = _pool(random, plane, CODE_BITS[matrix.kind])
                _write_codes(writer, f"{name}.{plane}", matrix, pools[plane], random)
            writer.write(f"{name}.scales", _scales(writer, name, matrix, random))
            progress.advance(matrix.stack.rows * matrix.stack.width)
    for name, stack in tensors.vectors.items():
        writer.write(name, np.ones(stack.rows, np.float32))
    if tensors.masks:
        size = (tensors.masks, tensors.hidden_size)
        writer.write(MASK_TABLE, random.standard_normal(size, np.float32))


def _pool(random: np.random.Generator, plane: str, bits: int) -> NDArray[np.int32]:
    """Packed random codes, int32[POOL_WORDS]: any run of words is a run of codes."""
    low, high = _CODES[plane]
    width = POOL_WORDS // (TILE_ROWS * 64) * (32 // bits)
    codes = random.integers(low, high, (TILE_ROWS * 64, width), np.int8, endpoint=True)
    return pack_weight(codes, bits).reshape(-1)


def _write_codes(
    writer: WeightsWriter,
    name: str,
    matrix: Matrix,
    pool: NDArray[np.int32],
    random: np.random.Generator,
) -> None:
    tiles, words, lanes = writer.entries[name].shape
    most = max(pool.size // 2 // (words * lanes), 1)
    padding = tiles * TILE_ROWS - matrix.stack.rows
    for first in range(0, tiles, most):
        count = min(most, tiles - first)
        size = count * words * lanes
        start = int(random.integers(pool.size - size, endpoint=True))
        block = pool[start : start + size].reshape(count, words, lanes)
        if padding and first + count == tiles:
            block = block.copy()
            zero = pack_weight(np.zeros((1, 64), np.int8), CODE_BITS[matrix.kind])[0, 0, 0]
            block[-1, :, lanes - padding :] = zero
        writer.write(name, block, first)


def _scales(
    writer: WeightsWriter, name: str, matrix: Matrix, random: np.random.Generator
) -> NDArray[np.float16]:
    """Scales with which a product has the size of what goes in; of one a tensor, all alike."""
    shape = writer.entries[f"{name}.scales"].shape
    low, high = _CODES[matrix.planes[0]]
    size = (np.square(np.arange(low, high + 1)).mean() * matrix.stack.width) ** -0.5
    spread = random.uniform(0.75, 1.25, shape) if matrix.group_size else np.ones(shape)
    scales = (size * spread).astype(np.float16)
    if padding := shape[0] * TILE_ROWS - matrix.stack.rows:
        scales[-1, :, TILE_ROWS - padding :] = 0
    return scales


def _tokenizer_json(vocab_size: int) -> str:
    """A byte-level tokenizer whose token i is the number i behind a space."""
    byte_level = {"add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    vocabulary = {f"\u0120{index}": index for index in range(vocab_size)}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", **byte_level},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", **byte_level},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        }
    )
