"""The meter with sources that count energy: with each reading, or too dear for that."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bitmtp_edge.power.source import Reading, SourceError

from .simulated import Bench, Simulated


class Counting(Simulated):
    """Has a counter of 20 W besides, which moves ten times a second."""

    def read(self) -> Reading:
        counted = 20 * (self.bench.now * 10 // 1) / 10
        return replace(super().read(), joules=counted)


class CounterOnly(Counting):
    counter_only = True


def test_the_counter_is_what_counts_and_both_are_told() -> None:
    report = Bench(Counting()).run(prefill=1, decode=3, tokens=60)
    assert report.joules == report.counter_joules == pytest.approx(80, rel=0.01)
    assert report.integrated_joules == pytest.approx(40)
    assert report.joules_per_token == pytest.approx(1, rel=0.02)
    assert report.mean_w == pytest.approx(20, rel=0.01)
    assert report.peak_w == 10


def test_a_window_waits_for_the_counter_to_move() -> None:
    bench = Bench(Counting())
    window = bench.meter.begin()
    bench.sleep(2)
    assert window.end(1).joules == pytest.approx(40, rel=0.03)


def test_power_made_of_the_counter_is_no_second_opinion() -> None:
    report = Bench(CounterOnly()).run()
    assert report.joules == report.counter_joules
    assert report.integrated_joules is None and report.decode.integrated_joules is None


def test_a_counter_that_stops_leaves_no_figure() -> None:
    class Stopping(Counting):
        def read(self) -> Reading:
            return replace(super().read(), joules=5.0)

    report = Bench(Stopping()).run()
    assert report.joules is None
    assert report.reason == "the counter moved 0 times in 3 s: at least 5 are needed"
    assert report.integrated_joules == pytest.approx(30)


class Dear(Simulated):
    """Has a counter of 20 W that moves ten times a second and takes 6 ms to read."""

    def __init__(self) -> None:
        super().__init__(lambda at: 20.0)
        self.update_s = 0.1
        self.looks = 0

    def counter(self) -> float:
        self.looks += 1
        self.bench.now += 0.003
        counted = 20 * math.floor(self.bench.now * 10) / 10
        self.bench.now += 0.003
        return counted


def test_a_dear_counter_is_looked_at_around_the_edges_alone() -> None:
    source = Dear()
    bench = Bench(source)
    report = bench.run(prefill=1.234, decode=60, tokens=600)
    assert report.joules == report.counter_joules == pytest.approx(20 * 61.234, rel=1e-3)
    assert report.prefill.joules == pytest.approx(20 * 1.234, rel=0.01)
    assert report.decode.joules == pytest.approx(1200, rel=1e-3)
    assert report.integrated_joules == pytest.approx(20 * 61.234)
    assert report.prefill.joules + report.decode.joules == pytest.approx(report.joules)
    assert (report.coverage, report.reason) == (1, None)
    assert source.looks < 70


@pytest.mark.parametrize("into_a_period", [0.0, 0.03, 0.06, 0.09])
def test_the_idle_baseline_of_a_dear_counter(into_a_period: float) -> None:
    bench = Bench(Dear())
    bench.sleep(3 + into_a_period)
    idle = bench.meter.measure_idle(2)
    assert (idle.mean_w, idle.reason) == (pytest.approx(20, rel=0.01), None)


def test_between_an_edge_and_the_move_next_to_it_power_counts() -> None:
    """Power doubles when decoding begins, in the middle of the counter's period."""

    class Doubling(Dear):
        counted = 0.0

        def counter(self) -> float:
            self.looks += 1
            self.bench.now += 0.006
            last_move = math.floor(self.bench.now * 10) / 10
            return 20 * last_move + 20 * max(0.0, last_move - 1002.05)

    source = Doubling()
    source.watts = lambda at: 20.0 if at < 1002.05 else 40.0
    bench = Bench(source)
    bench.sleep(1)
    window = bench.meter.begin()
    bench.sleep(1002.05 - bench.now)
    window.mark_decode()
    bench.sleep(2)
    report = window.end(1)
    assert report.decode.joules == pytest.approx(80, rel=0.02)
    assert report.prefill.mean_w == pytest.approx(20, rel=0.06)


def test_power_that_comes_ten_times_a_second_too() -> None:
    """As NVML has it: a value keeps the stamp of its first sight."""

    class Held(Dear):
        def read(self) -> Reading:
            return replace(super().read(), at=math.floor(self.bench.now * 10 - 0.3) / 10 + 0.03)

    for prefill in (1.0, 1.03, 1.06):
        report = Bench(Held()).run(prefill=prefill, decode=3)
        assert report.decode.joules == pytest.approx(60, rel=0.01)


def test_a_window_of_a_few_moves_is_too_short() -> None:
    report = Bench(Dear()).run(prefill=0.3, decode=2)
    assert report.prefill.joules is None
    assert report.prefill.reason == (
        "0.3 s are too short for a counter that moves every 0.1 s: at least 0.5 are needed"
    )
    assert report.decode.joules == pytest.approx(40, rel=0.02)


def test_a_dear_counter_that_stands_still() -> None:
    class Still(Dear):
        def counter(self) -> float:
            super().counter()
            return 7.0

    report = Bench(Still()).run()
    assert report.joules is None and report.coverage == 0
    assert report.reason == (
        "the counter was not seen to move around the window's beginning "
        "(the counter has stood still for 0.4 s)"
    )
    assert report.integrated_joules == pytest.approx(60)


def test_a_dear_counter_that_goes_away() -> None:
    class Gone(Dear):
        def counter(self) -> float:
            if self.bench.now > 1002:
                raise SourceError("GPU is lost")
            return super().counter()

    report = Bench(Gone()).run()
    assert report.joules is None
    assert report.reason == (
        "the counter was not seen to move around the window's end (GPU is lost)"
    )


def test_a_dear_counter_that_runs_backwards() -> None:
    class Back(Dear):
        def counter(self) -> float:
            return super().counter() * (1 if self.bench.now < 1002 else 0.5)

    assert Bench(Back()).run(prefill=0).reason == "the counter ran backwards"
