"""The sweep that TernaryLinear and DualPlaneLinear share."""

from __future__ import annotations

import numpy as np

from bitmtp_edge import layout

from . import oracle
from .harness import make_node, rng, same_bits, sweep_rows
from .weights import random_weight

OP = {"ternary": "TernaryLinear", "w4": "DualPlaneLinear", "w8": "DualPlaneLinear"}

# Odd N; K not a multiple of 128 nor, in two of them, of 64.
SHAPES = ((37, 200), (963, 576), (13, 320), (5, 63))


def fused_scales(g: np.random.Generator, rows: int, groups: int) -> np.ndarray:
    """fp16 [rows, groups] of q, k and v in one matrix: a scale each, a thousand apart, and a
    little of its own for every group."""
    parts = np.sort(g.integers(1, rows, 2))
    size = np.repeat([0.1, 1e-4, 0.01], np.diff([0, *parts, rows]))
    return (size[:, None] * g.uniform(0.5, 1, (1, groups))).astype(np.float16)


def sweep(kind: str, rows: int, width: int, group_size: int, residual: bool) -> None:
    """Fused projections of unequal scales, against the oracle; in equal bits for one group."""
    g = rng("linear", kind, rows, width, group_size, residual)
    scales = fused_scales(g, rows, layout.group_count(width, group_size))
    weight = random_weight(g, kind, rows, width, group_size, scales)
    codes = g.integers(-127, 128, (33, width))
    act_scale = (10.0 ** g.uniform(-4, 0, 33)).astype(np.float32)
    want, bound = oracle.linear(codes, act_scale, weight.codes, weight.scales, group_size)

    tensors = dict(weight.tensors)
    tensors["packed" if kind == "ternary" else "base"] = tensors.pop("table")
    per_row = {"codes": layout.pack_activations(codes), "act_scale": act_scale}
    if residual:
        per_row["residual"] = g.normal(size=want.shape).astype(np.float32)
        want, bound = want + per_row["residual"], bound + 1e-6 * np.abs(per_row["residual"])
    attributes = {"rows": rows, "width": width, "group_size": group_size}
    node = make_node(OP[kind], attributes, (*tensors, *per_row))
    for part, body, ours in sweep_rows(node, {**per_row, **tensors}, tuple(per_row), g):
        for label, out in (("body", body["out"]), ("ours", ours["out"])):
            off = (np.abs(out - want[part]) / (bound[part] + 1e-30)).max()
            assert off <= 1, f"{label}, rows {part}: {off} times the bound"
        if weight.scales.shape[1] == 1:
            assert same_bits(body, ours), part


def sweep_unit_scales(kind: str, rows: int, width: int, group_size: int) -> None:
    """With scales of 1 the output is the integer dot itself, at the codes' extremes too."""
    g = rng("unit", kind, rows, width, group_size)
    # A scale of 16 is a unit of the composed code.
    scales = np.array([[16.0 if kind == "w8" else 1.0]])
    weight = random_weight(g, kind, rows, width, group_size, scales)
    codes = g.integers(-127, 128, (33, width))
    codes[::3] = np.sign(weight.codes[0]) * 127  # the largest dot there is, with row 0
    tensors = dict(weight.tensors)
    tensors["packed" if kind == "ternary" else "base"] = tensors.pop("table")
    per_row = {"codes": layout.pack_activations(codes), "act_scale": np.ones(33, np.float32)}
    attributes = {"rows": rows, "width": width, "group_size": group_size}
    node = make_node(OP[kind], attributes, (*tensors, *per_row))
    want = codes @ weight.codes.T
    assert np.abs(want).max() < 2**24
    for part, body, ours in sweep_rows(node, {**per_row, **tensors}, tuple(per_row), g):
        np.testing.assert_array_equal(body["out"], want[part])
        np.testing.assert_array_equal(ours["out"], want[part])
