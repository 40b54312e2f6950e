"""Energy of a window, from samples of power or of a counter: pure arithmetic, nothing estimated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ..wording import counted

MIN_SAMPLES = 5


class Point(NamedTuple):
    """A value at a moment: seconds, and W or J."""

    at: float
    value: float


@dataclass(frozen=True)
class Integral:
    """joules: None where ``reason`` says why. peak_w: the highest sample of the window.
    coverage: the share of the window, 0 to 1, between samples that lie close enough."""

    joules: float | None
    peak_w: float | None
    samples: int
    coverage: float
    reason: str | None


def integrate(points: Sequence[Point], start: float, end: float, widest: float) -> Integral:
    """Joules of power samples (W) between ``start`` and ``end``, by the trapezoid rule.

    points: in order of time, no two of one time. At the edges power is interpolated between the
    samples on both sides. Two samples more than ``widest`` seconds apart have a gap between them.
    """
    inside = [point.value for point in points if start <= point.at <= end]
    if end <= start:
        return Integral(None, None, len(inside), 0.0, "the window is empty")
    joules, coverage = _area(points, start, end, widest)
    reason = None
    if len(inside) < MIN_SAMPLES:
        found = counted(len(inside), "sample")
        reason = f"{found} in {end - start:.3g} s: at least {MIN_SAMPLES} are needed"
    elif coverage < 1:
        reason = f"samples cover {coverage:.1%} of the window: {_gap(points, start, end, widest)}"
    if reason is not None:
        return Integral(None, None, len(inside), coverage, reason)
    return Integral(joules, max(inside), len(inside), 1.0, None)


def count(points: Sequence[Point], start: float, end: float, widest: float) -> Integral:
    """Joules that a counter (J) went up between ``start`` and ``end``, interpolated at the edges.

    What counts is when the counter moved, so of equal readings only the first is used, and the very
    first not at all: when that value began is unknown. A gap matters at an edge only, since a
    counter misses nothing in between. No peak.
    """
    moved = [after for before, after in pairwise(points) if after.value != before.value]
    samples = sum(start <= point.at <= end for point in moved)
    edges = [_at(moved, edge, widest) for edge in (start, end)]
    coverage = sum(edge is not None for edge in edges) / 2
    reason = None
    if end <= start:
        coverage, reason = 0.0, "the window is empty"
    elif any(after.value < before.value for before, after in pairwise(points)):
        reason = "the counter ran backwards"
    elif samples < MIN_SAMPLES:
        reason = (
            f"the counter moved {counted(samples, 'time')} in {end - start:.3g} s: "
            f"at least {MIN_SAMPLES} are needed"
        )
    elif None in edges:
        side = "beginning" if edges[0] is None else "end"
        reason = f"the counter did not move around the window's {side}"
    first, last = edges
    joules = None if reason or first is None or last is None else last - first
    return Integral(joules, None, samples, coverage, reason)


def between_moves(
    moves: Sequence[Point],
    points: Sequence[Point],
    start: float,
    end: float,
    widest: float,
    update: float,
) -> Integral:
    """Joules between ``start`` and ``end`` of a counter whose ``moves`` (J) were seen near them.

    points: power samples (W), which fill in what lies between an edge and the move next to it. A
    counter that moves every ``update`` seconds says nothing of a window of a few moves. No peak.
    """
    samples = sum(start <= point.at <= end for point in points)
    values = [_near(moves, points, edge, widest) for edge in (start, end)]
    coverage = sum(value is not None for value in values) / 2
    reason = None
    if end <= start:
        coverage, reason = 0.0, "the window is empty"
    elif end - start < MIN_SAMPLES * update:
        reason = (
            f"{end - start:.3g} s are too short for a counter that moves every {update:g} s: "
            f"at least {MIN_SAMPLES * update:g} are needed"
        )
    elif None in values:
        side = "beginning" if values[0] is None else "end"
        reason = f"the counter was not seen to move around the window's {side}"
    first, last = values
    if reason is None and first is not None and last is not None:
        if last >= first:
            return Integral(last - first, None, samples, coverage, None)
        reason = "the counter ran backwards"
    return Integral(None, None, samples, coverage, reason)


def _near(
    moves: Sequence[Point], points: Sequence[Point], at: float, widest: float
) -> float | None:
    """The counter at a moment: the move next to it, and the power in between."""
    if not moves:
        return None
    move = min(moves, key=lambda each: abs(each.at - at))
    low, high = sorted((move.at, at))
    if high - low > widest:
        return None
    joules, coverage = _area(points, low, high, widest)
    if coverage < 1:
        return None
    return move.value + (joules if move.at < at else -joules)


def _area(points: Sequence[Point], start: float, end: float, widest: float) -> tuple[float, float]:
    """Joules of the parts without a gap, and what share of the time these are."""
    if start == end:
        return 0.0, 1.0
    pieces, seconds = [], []
    for low, high in _stretches(points, start, end, widest):
        pieces.append((low.value + high.value) / 2 * (high.at - low.at))
        seconds.append(high.at - low.at)
    covered = math.fsum(seconds) / (end - start)
    # Seconds since boot have few digits left for what lies between them.
    whole = math.isclose(covered, 1.0, abs_tol=1e-6)
    return math.fsum(pieces), 1.0 if whole else covered


def _stretches(
    points: Sequence[Point], start: float, end: float, widest: float
) -> Iterator[tuple[Point, Point]]:
    """Pairs of neighbours without a gap between them, cut to the window."""
    for before, after in pairwise(points):
        low, high = max(before.at, start), min(after.at, end)
        if low < high and after.at - before.at <= widest:
            yield (
                Point(low, _between(before, after, low)),
                Point(high, _between(before, after, high)),
            )


def _between(before: Point, after: Point, at: float) -> float:
    if at == before.at:
        return before.value
    if at == after.at:
        return after.value
    share = (at - before.at) / (after.at - before.at)
    return before.value + share * (after.value - before.value)


def _at(points: Sequence[Point], at: float, widest: float) -> float | None:
    """The value at a moment; None where no two close points have it between them."""
    for before, after in pairwise(points):
        if before.at <= at <= after.at:
            return _between(before, after, at) if after.at - before.at <= widest else None
    return None


def _gap(points: Sequence[Point], start: float, end: float, widest: float) -> str:
    """The first gap of the window, told."""
    if points[0].at > start:
        return f"the first came {points[0].at - start:.2f} s after its beginning"
    for before, after in pairwise(points):
        if after.at > start and before.at < end and after.at - before.at > widest:
            return f"{after.at - before.at:.2f} s without one, {before.at - start:.2f} s into it"
    return f"the last came {end - points[-1].at:.2f} s before its end"
