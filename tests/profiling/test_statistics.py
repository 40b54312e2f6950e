"""Intervals by Student's t, and the rule of a change."""

from __future__ import annotations

import math

import pytest

from bitmtp_edge.profiling.statistics import FLOOR, Estimate, estimate, t_quantile


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.706), (2, 4.303), (9, 2.262), (30, 2.042), (31, 2.0395), (60, 2.0003), (1000, 1.9623)],
)
def test_quantiles(degrees: int, expected: float) -> None:
    """The values of printed tables."""
    assert t_quantile(degrees) == pytest.approx(expected, abs=6e-4)


def test_an_interval() -> None:
    found = estimate([10.0, 12.0, 14.0])
    half = 4.303 * 2 / math.sqrt(3)
    assert (found.mean, found.values) == (12, (10.0, 12.0, 14.0))
    assert (found.low, found.high) == (pytest.approx(12 - half), pytest.approx(12 + half))
    assert found.margin == pytest.approx(half / 12)
    assert found.is_tight(half / 12 + 1e-9) and not found.is_tight(half / 12 - 1e-9)


def test_one_round_has_no_interval() -> None:
    found = estimate([5.0])
    assert (found.mean, found.low, found.high, found.margin) == (5, None, None, None)
    assert not found.is_tight(1.0)


def between(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high, (low, high))


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (between(104, 106), True),
        (between(94, 96), True),
        (between(100.9, 109.1), False),  # the intervals touch
        (between(101.2, 101.4), False),  # apart, by less than the floor
        (Estimate(200, None, None, (200.0,)), False),  # a single round
    ],
)
def test_a_change_beyond_noise(now: Estimate, changed: bool) -> None:
    assert FLOOR == 0.02
    assert now.differs_from(between(99, 101)) is changed
    assert between(99, 101).differs_from(now) is changed
