"""Integration: exact on synthetic traces, and no figure where something is missing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import pytest

from bitmtp_edge.power.trace import Point, between_moves, count, integrate

Curve = Callable[[float], float]
BOOT = 1e6  # seconds that a machine has been up for


def sampled(curve: Curve, times: list[float]) -> list[Point]:
    return [Point(at, curve(at)) for at in times]


def grid(start: float, end: float, step: float) -> list[float]:
    return [start + step * i for i in range(round((end - start) / step) + 1)]


@pytest.mark.parametrize("start", [0.0, BOOT])
def test_constant_power(start: float) -> None:
    points = sampled(lambda at: 30.0, grid(start, start + 10, 0.05))
    found = integrate(points, start + 1.234, start + 7.777, 0.25)
    assert found.joules == pytest.approx(30 * (7.777 - 1.234), rel=1e-9)
    assert (found.peak_w, found.coverage, found.reason) == (30, 1, None)
    assert found.samples == 131


def test_a_ramp_has_its_edges_interpolated() -> None:
    points = sampled(lambda at: 2 * at, grid(0, 10, 0.5))
    found = integrate(points, 1.2, 8.9, 1)
    assert found.joules == pytest.approx(8.9**2 - 1.2**2)
    assert found.peak_w == 17  # the highest sample, not the interpolated edge


def test_steps() -> None:
    """10 W, then 40 W from 2 s to 3 s; each step between two samples a microsecond apart."""
    edge = 1e-6
    power = {0: 10.0, 1: 10.0, 2 - edge: 10.0, 2: 40.0, 2.5: 40.0, 3: 40.0, 3 + edge: 10.0, 5: 10.0}
    points = [Point(at, watts) for at, watts in power.items()]
    assert integrate(points, 0.5, 4, 3).joules == pytest.approx(25 + 40, abs=1e-4)
    assert integrate(points, 2, 3, 3).reason is not None  # three samples


@pytest.mark.parametrize("seed", range(5))
def test_jitter(seed: int) -> None:
    """Random samples at random moments: exact arithmetic agrees."""
    draw = random.Random(seed)
    times = sorted({draw.uniform(0, 10) for _ in range(200)} | {0.0, 10.0})
    points = [Point(at, draw.uniform(5, 60)) for at in times]
    start, end = draw.uniform(0, 4), draw.uniform(6, 10)

    def power(at: Fraction) -> Fraction:
        later = next(i for i, point in enumerate(points) if Fraction(point.at) >= at)
        (t0, p0), (t1, p1) = ((Fraction(x) for x in points[i]) for i in (later - 1, later))
        return p0 + (p1 - p0) * (at - t0) / (t1 - t0)

    bends = [Fraction(start), *(Fraction(t) for t in times if start < t < end), Fraction(end)]
    exact = sum((power(a) + power(b)) / 2 * (b - a) for a, b in pairwise(bends))
    found = integrate(points, start, end, 1)
    assert found.joules == pytest.approx(float(exact), rel=1e-12)


def test_split_windows_add_up() -> None:
    points = sampled(lambda at: 20 + 10 * math.sin(at), grid(0, 10, 0.01))
    parts = [integrate(points, a, b, 0.1).joules for a, b in ((1, 3.3), (3.3, 9))]
    assert None not in parts
    assert sum(filter(None, parts)) == pytest.approx(integrate(points, 1, 9, 0.1).joules)


def test_one_token() -> None:
    """A window of 12 ms on a sensor that gives a sample a millisecond."""
    points = sampled(lambda at: 50.0 if at > 1 else 5.0, grid(0, 2, 0.001))
    assert integrate(points, 1.5, 1.512, 0.01).joules == pytest.approx(50 * 0.012)
    assert integrate(points, 0.5, 0.512, 0.01).joules == pytest.approx(5 * 0.012)


def test_too_few_samples() -> None:
    points = sampled(lambda at: 50.0, grid(0, 2, 0.05))
    found = integrate(points, 1.0, 1.012, 0.25)
    assert (found.joules, found.peak_w) == (None, None)
    assert found.reason == "1 sample in 0.012 s: at least 5 are needed"
    assert integrate([], 0, 1, 1).reason == "0 samples in 1 s: at least 5 are needed"


def test_a_gap() -> None:
    points = sampled(lambda at: 50.0, [*grid(0, 2, 0.05), *grid(3, 5, 0.05)])
    found = integrate(points, 1, 5, 0.25)
    assert found.joules is None
    assert found.coverage == pytest.approx(0.75)
    assert found.reason == ("samples cover 75.0% of the window: 1.00 s without one, 1.00 s into it")
    assert integrate(points, 3, 5, 0.25).joules == pytest.approx(100)
    assert integrate(points, 1, 5, 1.5).joules == pytest.approx(200)


def test_a_sensor_that_stops() -> None:
    points = sampled(lambda at: 50.0, grid(0, 2, 0.05))
    found = integrate(points, 1, 2.1, 0.25)
    assert found.joules is None
    assert found.reason is not None
    assert found.reason.endswith("the last came 0.10 s before its end")


def test_a_sensor_that_begins_late() -> None:
    points = sampled(lambda at: 50.0, grid(1, 3, 0.05))
    found = integrate(points, 0.9, 2, 0.25)
    assert found.joules is None
    assert found.reason is not None
    assert found.reason.endswith("the first came 0.10 s after its beginning")


@pytest.mark.parametrize("tally", [integrate, count])
def test_an_empty_window(tally: Callable[..., object]) -> None:
    found = tally(sampled(lambda at: at, grid(0, 9, 1)), 5, 5, 2)
    assert (found.joules, found.reason) == (None, "the window is empty")  # type: ignore[attr-defined]


def counter(watts: float, update: float, poll: float, seconds: float) -> list[Point]:
    """Readings of a counter that moves every ``update`` seconds."""
    times = grid(0, seconds, poll)
    return [Point(at, watts * update * math.floor(round(at / update, 9))) for at in times]


def test_a_counter() -> None:
    found = count(counter(500, 0.1, 0.01, 10), 2.03, 7.56, 0.4)
    assert found.joules == pytest.approx(500 * 5.53)
    assert (found.coverage, found.reason, found.peak_w) == (1, None, None)
    assert found.samples == 55


def test_a_counter_between_its_moves_is_interpolated() -> None:
    points = counter(500, 0.1, 0.01, 10)
    whole = count(points, 2.0, 6.0, 0.4).joules
    parts = [count(points, a, b, 0.4).joules for a, b in ((2.0, 3.333), (3.333, 6.0))]
    assert None not in parts
    assert sum(filter(None, parts)) == pytest.approx(whole)


def test_a_counters_first_value_is_of_an_unknown_age() -> None:
    points = [Point(0.0, 100.0), *[Point(0.09 + 0.1 * i, 150.0 + 50 * i) for i in range(20)]]
    assert count(points, 0.05, 1.5, 0.4).reason == (
        "the counter did not move around the window's beginning"
    )
    assert count(points, 0.09, 1.59, 0.4).joules == pytest.approx(750)


def test_a_counter_misses_nothing_in_a_gap() -> None:
    points = counter(500, 0.1, 0.01, 10)
    seen = [point for point in points if not 4 < point.at < 6]
    assert count(seen, 2, 8, 0.4).joules == pytest.approx(3000)
    assert count(seen, 2, 5, 0.4).reason == "the counter did not move around the window's end"


def test_a_counter_that_moves_too_seldom() -> None:
    points = counter(500, 0.1, 0.01, 10)
    found = count(points, 2.01, 2.4, 0.4)
    assert found.joules is None
    assert found.reason == "the counter moved 4 times in 0.39 s: at least 5 are needed"


def test_a_counter_that_stands_still() -> None:
    found = count([Point(at, 7.0) for at in grid(0, 9, 0.05)], 1, 8, 0.4)
    assert (found.joules, found.coverage) == (None, 0)
    assert found.reason == "the counter moved 0 times in 7 s: at least 5 are needed"


def test_a_counter_that_runs_backwards() -> None:
    points = counter(500, 0.1, 0.01, 10)
    points[500] = Point(points[500].at, 1.0)
    assert count(points, 2, 8, 0.4).reason == "the counter ran backwards"


def test_between_moves() -> None:
    """A counter of 50 W, and power samples that say 40 W: they count where it was not seen."""
    points = sampled(lambda at: 40.0, grid(0, 10, 0.05))
    moves = [Point(2.0, 100.0), Point(7.0, 350.0)]
    found = between_moves(moves, points, 2.02, 6.9, 0.4, 0.1)
    assert found.joules == pytest.approx(250 - 40 * 0.02 - 40 * 0.1)
    assert (found.coverage, found.reason) == (1, None)
    assert between_moves(moves, points, 2.0, 7.0, 0.4, 0.1).joules == pytest.approx(250)


@pytest.mark.parametrize(
    ("start", "end", "coverage", "reason"),
    [
        (2.5, 7.0, 0.5, "the counter was not seen to move around the window's beginning"),
        (2.0, 7.5, 0.5, "the counter was not seen to move around the window's end"),
        (2.0, 2.4, 1, "0.4 s are too short for a counter that moves every 0.1 s"),
        (2.0, 2.0, 0, "the window is empty"),
    ],
)
def test_too_far_from_its_moves(start: float, end: float, coverage: float, reason: str) -> None:
    points = sampled(lambda at: 40.0, grid(0, 10, 0.05))
    moves = [Point(2.0, 100.0), Point(7.0, 350.0)]
    found = between_moves(moves, points, start, end, 0.4, 0.1)
    assert (found.joules, found.coverage) == (None, coverage)
    assert found.reason is not None and found.reason.startswith(reason)
    assert between_moves([], points, 2, 7, 0.4, 0.1).coverage == 0


def test_no_power_between_an_edge_and_a_move() -> None:
    points = sampled(lambda at: 40.0, [*grid(0, 2, 0.05), *grid(3, 10, 0.05)])
    moves = [Point(2.0, 100.0), Point(7.0, 350.0)]
    found = between_moves(moves, points, 2.1, 7.0, 0.4, 0.1)
    assert found.reason == "the counter was not seen to move around the window's beginning"
