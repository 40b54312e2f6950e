"""Random packed weights of every kind, with the codes and scales they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge import layout

from .harness import Arrays

Array = NDArray[Any]

# (kind, group size) of every table: fp16 has no scales.
KINDS = [("fp16", 0)]
KINDS += [(kind, size) for kind in ("int8", "ternary", "w4", "w8") for size in (0, 64, 128)]


@dataclass(frozen=True)
class Weight:
    """``tensors`` by port (``table`` for the first); ``codes`` int [N, K] and ``scales`` [N, G]
    are what they say, refinement and its sixteenth included."""

    tensors: Arrays
    codes: Array
    scales: Array

    @property
    def values(self) -> Array:
        """float64[N, K]."""
        width = self.codes.shape[1]
        groups = self.scales.shape[1]
        if groups == 1:
            return self.codes * self.scales
        size = -(-(-(-width // 64) * 64) // groups // 64) * 64
        return self.codes * np.repeat(self.scales, size, axis=1)[:, :width]


def random_weight(
    g: np.random.Generator,
    kind: str,
    rows: int,
    width: int,
    group_size: int,
    scales: Array | None = None,
) -> Weight:
    """kind: "fp16", "int8", "ternary", "w4" or "w8" (dual without and with its refinement).

    scales fp16-exact [N, G], or None: drawn over three powers of ten, as fused projections have
    them.
    """
    if kind == "fp16":
        table = g.normal(0, 0.1, (rows, width)).astype(np.float16)
        return Weight({"table": table}, table.astype(np.float64), np.ones((rows, 1)))
    groups = layout.group_count(width, group_size)
    if scales is None:
        scales = 10.0 ** g.uniform(-4, -1, (rows, groups))
    half = np.broadcast_to(scales, (rows, groups)).astype(np.float16)
    tensors: Arrays = {"scales": layout.pack_scales(half)}
    bits = {"int8": 8, "ternary": 2, "w4": 4, "w8": 4}[kind]
    low, high = (-1, 2) if bits == 2 else (-(1 << bits - 1), 1 << bits - 1)
    codes = g.integers(low, high, (rows, width))
    codes[:, 0] = low  # the extremes are there, in column 0 of every row
    tensors["table"] = layout.pack_weight(codes, bits)
    exact = half.astype(np.float64)
    if kind != "w8":
        return Weight(tensors, codes, exact)
    refinement = g.integers(-8, 8, (rows, width))
    refinement[codes == low] = abs(refinement[codes == low]) % 8  # -8 takes only refinements >= 0
    tensors["refinement"] = layout.pack_weight(refinement, 4)
    return Weight(tensors, 16 * codes + refinement, exact / 16)
