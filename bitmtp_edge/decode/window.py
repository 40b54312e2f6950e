"""Builds causal windows: the token slots of one step (docs/architecture.md).

A window changes from step to step only in its ids and its first position. Masks, relative
positions and head slots depend on row counts alone, so each is built once and shared, read-only, by
all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.engines.base import Window


def causal_window(
    tokens: list[int],
    start: int,
    following: Sequence[int],
    width: int,
    heads: int,
    outputs: int,
    kv4_length: int = 0,
    two_way: int = 0,
) -> Window:
    """The window of ``(tokens + following)[start:]`` behind ``start`` rows of history.

    Row i holds position ``start + i`` and sees the whole history and rows 0..i; the last
    ``two_way`` rows, masks of a block with full attention, also see each other. Rows come first of
    the ``width`` slots; spare slots hold token 0 at position ``start`` and see only themselves. The
    last ``heads`` rows need an output: row r of the step's output belongs to the r-th of them, and
    the rest of the ``outputs`` head slots repeat the last.

    Needs ``1 <= heads <= outputs`` and ``heads <= rows <= width``; ``start`` may lie in
    ``following``, which is drafts or masks: id -1-i is row i of the model's mask embeddings.
    """
    ids = tokens[start:]
    ids += following[max(0, start - len(tokens)) :]
    rows = len(ids)
    ids += [0] * (width - rows)
    offsets, mask = _slots(rows, width, two_way)
    return Window(
        token_ids=np.array(ids, np.int32),
        positions=offsets + np.int32(start),
        mask=mask,
        history_length=start,
        head_slots=_last_slots(rows, heads, outputs),
        kv4_length=kv4_length,
    )


@lru_cache(maxsize=4096)
def _slots(rows: int, width: int, two_way: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Positions relative to the first row int32[M], and the mask int32[M, ceil(M/32)]."""
    if not 1 <= rows <= width or two_way > rows:
        raise ValueError(f"{rows} rows do not fit a window of {width} slots")
    sees = np.eye(width, -(-width // 32) * 32, dtype=np.uint8)
    sees[:rows, :rows] = np.tri(rows, dtype=np.uint8)
    sees[rows - two_way : rows, rows - two_way : rows] = 1
    mask = np.packbits(sees, axis=1, bitorder="little").view("<i4").astype(np.int32)
    offsets = np.zeros(width, np.int32)
    offsets[:rows] = np.arange(rows)
    return _frozen(offsets), _frozen(mask)


@lru_cache(maxsize=4096)
def _last_slots(rows: int, heads: int, outputs: int) -> NDArray[np.int32]:
    if not 1 <= heads <= min(rows, outputs):
        raise ValueError(f"{heads} outputs of {rows} rows do not fit {outputs} head slots")
    slots = np.full(outputs, rows - 1, np.int32)
    slots[:heads] = np.arange(rows - heads, rows)
    return _frozen(slots)


def _frozen(array: NDArray[np.int32]) -> NDArray[np.int32]:
    array.flags.writeable = False
    return array
