"""Nested W4/W8 weights (BitNest section 3.2 and A.1): the base first and fixed, then a refinement
of its error.

A weight is ``q * s`` in the base view and ``(16q + r) * s/16`` in the composed one: the base is an
exact subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.errors import UserError

# The widest values that a base code and its refinement compose to: -128/16 and (16*7 + 7)/16
# scales.
LARGEST_NEGATIVE = 8.0
LARGEST_POSITIVE = 119 / 16
# Scales above the smallest that clips nothing are tried too: the base has fewer codes to lose than
# the composed view has range.
LADDER = tuple(1.15 ** (step / 5) for step in range(6))
_FP16_MAX = float(np.finfo(np.float16).max)


class NestedCodes(NamedTuple):
    """base int8[rows, K] in [-8, 7]; refinement int8[rows, K] in [-8, 7]; scales fp16[rows, G]."""

    base: NDArray[np.int8]
    refinement: NDArray[np.int8]
    scales: NDArray[np.float16]


def group_size_for(width: int) -> int:
    """Weights that share a scale: 128, or 64 where 128 does not divide the width."""
    return 64 if width % 128 else 128


def quantize_nested(
    weights: NDArray[np.float32],
    group_size: int,
    name: str,
    importance: NDArray[np.float32] | None = None,
) -> NestedCodes:
    """Round-to-nearest nested codes of ``weights`` float32 [rows, K], one scale a row and group of
    ``group_size`` columns.

    Of a short ladder of scales, each group takes the one with the smallest squared error of the
    base view, column k counted ``importance[k]`` times (fp32 [K], None: all alike). Then the
    refinement is the rest, rounded half to even in sixteenths of the scale. It is off by more than
    half a code only where it meets its own range: [-8, 7], and [0, 7] below base -8, which keeps
    the composed code in eight bits.

    Raises UserError naming the tensor ``name`` for values that are not finite or beyond what an
    fp16 scale reaches.
    """
    rows, width = weights.shape
    groups = -(-width // group_size)
    if not np.isfinite(weights).all():
        raise UserError(f"tensor {name} holds values that are not finite (NaN or infinity)")
    padded = np.zeros((rows, groups * group_size), np.float32)
    padded[:, :width] = weights
    grouped = padded.reshape(rows, groups, group_size)
    counts = np.zeros(groups * group_size, np.float32)
    counts[:width] = 1 if importance is None else importance
    scales = _best_scales(grouped, counts.reshape(groups, group_size), name)
    step = scales.astype(np.float32)[..., None]
    base = _round_base(grouped, step)
    rest = np.rint((grouped - base * step) * (16 * _reciprocal(step)))
    refinement = np.clip(rest, np.where(base == -8, np.float32(0), np.float32(-8)), 7)
    return NestedCodes(
        base.reshape(rows, -1)[:, :width].astype(np.int8),
        refinement.reshape(rows, -1)[:, :width].astype(np.int8),
        scales,
    )


def _reciprocal(step: NDArray[np.float32]) -> NDArray[np.float32]:
    """1/step, and 0 for the scale 0 of a group of zeros."""
    return np.divide(np.float32(1), step, out=np.zeros_like(step), where=step != 0)


def _round_base(grouped: NDArray[np.float32], step: NDArray[np.float32]) -> NDArray[np.float32]:
    base = grouped * _reciprocal(step)
    return np.clip(np.rint(base, out=base), -8, 7, out=base)


def _best_scales(
    grouped: NDArray[np.float32], counts: NDArray[np.float32], name: str
) -> NDArray[np.float16]:
    """fp16 [rows, G]: per group, the ladder's scale of the smallest squared base error, weighted by
    ``counts`` [G, group_size]; the smaller scale of equals.
    """
    smallest = np.maximum(
        grouped.max(axis=2) / LARGEST_POSITIVE, -grouped.min(axis=2) / LARGEST_NEGATIVE
    )
    if smallest.max(initial=0) * LADDER[-1] > _FP16_MAX:
        raise UserError(
            f"tensor {name} holds values up to {np.abs(grouped).max():.3g}, too large for fp16 "
            "scales"
        )
    best = _round_up(smallest)
    least = _base_error(grouped, counts, best)
    for factor in LADDER[1:]:
        scales = _round_up(smallest * np.float32(factor))
        error = _base_error(grouped, counts, scales)
        better = error < least
        best = np.where(better, scales, best)
        least = np.where(better, error, least)
    return best


def _round_up(values: NDArray[np.float32]) -> NDArray[np.float16]:
    """The smallest fp16 that is not below each value, so that the outermost weight is still
    reached.
    """
    rounded = values.astype(np.float16)
    return np.where(
        rounded.astype(np.float32) < values, np.nextafter(rounded, np.float16(np.inf)), rounded
    )


def _base_error(
    grouped: NDArray[np.float32], counts: NDArray[np.float32], scales: NDArray[np.float16]
) -> NDArray[np.float32]:
    step = scales.astype(np.float32)[..., None]
    error = _round_base(grouped, step)
    error *= step
    error -= grouped
    np.square(error, out=error)
    error *= counts
    return np.asarray(error.sum(axis=2))
