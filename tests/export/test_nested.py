"""Nested codes: the base is chosen alone, and the refinement recovers what eight bits can."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.quantize import nested
from bitmtp_edge.export.quantize.nested import NestedCodes, group_size_for, quantize_nested

WIDTHS = [64, 128, 192, 576, 640, 100]


def _weights(rows: int, width: int, kind: str) -> NDArray[np.float32]:
    random = np.random.default_rng(width)
    values = random.standard_normal((rows, width))
    if kind == "heavy":
        values = random.standard_t(2, (rows, width))
    if kind == "one-sided":
        values = np.abs(values)
    if kind == "tiny":
        values *= 1e-6
    if kind == "large":
        values *= 3e4
    return np.asarray(values, np.float32)


def _values(codes: NestedCodes, width: int, composed: bool) -> NDArray[np.float64]:
    group = group_size_for(width)
    scales = np.repeat(codes.scales.astype(np.float64), group, axis=1)[:, :width]
    if not composed:
        return codes.base * scales
    return (16 * codes.base.astype(np.int32) + codes.refinement) * scales / 16


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["normal", "heavy", "one-sided", "tiny", "large"])
def test_codes_reach_every_weight(width: int, kind: str) -> None:
    weights = _weights(40, width, kind)
    codes = quantize_nested(weights, group_size_for(width), "w")
    assert codes.base.min() >= -8 and codes.base.max() <= 7
    assert codes.refinement.min() >= -8 and codes.refinement.max() <= 7
    assert codes.refinement[codes.base == -8].min(initial=0) >= 0
    composed = 16 * codes.base.astype(np.int32) + codes.refinement
    assert composed.min() >= -128 and composed.max() <= 127

    group = group_size_for(width)
    steps = np.repeat(codes.scales.astype(np.float64), group, axis=1)[:, :width]
    error = np.abs(weights - _values(codes, width, composed=True))
    # Half a code; a whole one where the rest rounds to 8 and the refinement ends at 7.
    base_rest = (weights / steps - codes.base) * 16
    limit = np.where(base_rest > 7.5, 1 / 16, 1 / 32) * steps
    assert (error <= limit * (1 + 1e-4)).all()


def test_the_base_alone_is_round_to_nearest() -> None:
    """W4 is an exact subset of W8: base codes and scales do not depend on the refinement."""
    weights = _weights(16, 128, "normal")
    codes = quantize_nested(weights, 128, "w")
    scales = codes.scales.astype(np.float32)
    assert np.array_equal(codes.base, np.clip(np.rint(weights / scales), -8, 7))
    for factor in nested.LADDER:
        smallest = np.maximum(weights.max(1) / (119 / 16), -weights.min(1) / 8)
        other = (smallest * factor).astype(np.float16).astype(np.float32)[:, None]
        base = np.clip(np.rint(weights / other), -8, 7)
        least = ((weights - codes.base * scales) ** 2).sum(1)
        assert (least <= ((weights - base * other) ** 2).sum(1) * 1.02).all()


def test_the_base_follows_its_error_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = _weights(32, 64, "normal")
    kept = quantize_nested(weights, 64, "w")
    monkeypatch.setattr(nested, "LADDER", (1.0,))
    first = quantize_nested(weights, 64, "w")
    error = [((weights - _values(codes, 64, False)) ** 2).sum(1) for codes in (kept, first)]
    assert (error[0] <= error[1]).all() and (error[0] < error[1]).any()


def test_a_block_of_rows_gives_the_codes_of_the_whole() -> None:
    weights = _weights(24, 192, "normal")
    whole = quantize_nested(weights, 64, "w")
    for first, last in ((0, 8), (8, 11), (11, 24)):
        part = quantize_nested(weights[first:last], 64, "w")
        for a, b in zip(part, whole, strict=True):
            assert np.array_equal(a, b[first:last])


def test_extremes_of_the_composed_range() -> None:
    weights = np.zeros((2, 64), np.float32)
    weights[0, 2:] = np.arange(62) % 13 - 6  # whole, so that no scale but 1 is as good
    weights[0, :2] = -8.0, 7.4375
    weights[1, 0] = -1.0
    codes = quantize_nested(weights, 64, "w")
    assert codes.scales[0, 0] == 1.0
    assert 16 * int(codes.base[0, 0]) + codes.refinement[0, 0] == -128
    assert 16 * int(codes.base[0, 1]) + codes.refinement[0, 1] == 119
    assert codes.scales[1, 0] == 0.125 and codes.base[1, 0] == -8


def test_groups_of_zeros_and_scales_below_the_normal_range() -> None:
    weights = np.zeros((1, 192), np.float32)
    weights[0, 64:128] = np.linspace(-2e-6, 2e-6, 64)
    weights[0, 128] = 1e-9
    codes = quantize_nested(weights, 64, "w")
    assert codes.scales[0, 0] == 0 and not codes.base[0, :64].any()
    subnormal = float(codes.scales[0, 1])
    assert 0 < subnormal < 2.0**-14
    error = np.abs(weights[0, 64:128] - _values(codes, 192, True)[0, 64:128])
    assert error.max() <= subnormal / 16
    assert codes.scales[0, 2] == np.float16(2.0**-24)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e6])
def test_weights_that_no_scale_reaches_are_refused(value: float) -> None:
    weights = np.ones((2, 64), np.float32)
    weights[1, 5] = value
    with pytest.raises(UserError, match=r"tensor some\.weight"):
        quantize_nested(weights, 64, "some.weight")
