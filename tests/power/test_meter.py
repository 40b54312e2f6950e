"""The meter: windows, phases, baseline, counters, and sensors that fail it."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, replace

import pytest

from bitmtp_edge.power.meter import Meter
from bitmtp_edge.power.report import Stretch
from bitmtp_edge.power.source import Reading, SourceError

from .simulated import Bench, Failing, Simulated


def test_a_window_and_its_phases() -> None:
    report = Bench(Simulated()).run(prefill=1, decode=3, tokens=60)
    assert report.joules == pytest.approx(40)
    assert report.prefill.joules == pytest.approx(10)
    assert report.decode.joules == pytest.approx(30)
    assert report.joules_per_token == pytest.approx(0.5)
    assert (report.mean_w, report.peak_w) == (pytest.approx(10), pytest.approx(10))
    assert (report.seconds, report.coverage, report.reason) == (pytest.approx(4), 1, None)
    assert report.samples in (80, 81)
    assert (report.source, report.total_is) == ("simulated", "VDD_IN")
    assert report.rails == {
        "VDD_IN": pytest.approx(10000),
        "VDD_CPU_GPU_CV": pytest.approx(8000),
    }
    assert report.integrated_joules == report.joules
    assert report.counter_joules is None
    assert report.idle is None


def test_phases_of_different_power() -> None:
    bench = Bench(Simulated(lambda at: 30.0 if at < 1002 else 12.0))
    report = bench.run(prefill=1, decode=2)
    assert report.peak_w == 30
    assert report.decode.peak_w == 12
    assert report.prefill.mean_w == pytest.approx(30, rel=0.02)
    assert report.decode.mean_w == pytest.approx(12, rel=0.02)
    assert report.prefill.joules and report.decode.joules
    assert report.joules == pytest.approx(report.prefill.joules + report.decode.joules)


def test_several_prompts_in_one_window() -> None:
    """Prefill draws 30 W and decoding 12: what is measured of each is all of its stretches."""
    edges = ((1001, 30.0), (1002, 12.0), (1004, 30.0), (1005, 12.0))

    def watts(at: float) -> float:
        return next((watts for begin, watts in reversed(edges) if at >= begin), 5.0)

    bench = Bench(Simulated(watts))
    bench.sleep(1)
    window = bench.meter.begin()
    for number in range(2):
        if number:
            window.mark_prefill()
        bench.sleep(1)
        window.mark_decode()
        bench.sleep(2)
    report = window.end(60)
    assert report.decode.seconds == pytest.approx(4)
    assert report.decode.joules == pytest.approx(48, rel=0.03)
    assert report.prefill.joules == pytest.approx(60, rel=0.03)
    assert report.joules_per_token == pytest.approx(0.8, rel=0.03)
    assert (report.decode.coverage, report.decode.reason) == (pytest.approx(1), None)
    told = [(each.phase, round(each.end - each.begin)) for each in window.stretches]
    assert told == [("prefill", 1), ("decode", 2)] * 2


def test_a_stretch_without_a_figure_leaves_all_without_one() -> None:
    bench = Bench(Simulated())
    bench.sleep(1)
    window = bench.meter.begin()
    for seconds in (2, 0.1):
        window.mark_prefill()
        bench.sleep(1)
        window.mark_decode()
        bench.sleep(seconds)
    report = window.end(60)
    assert (report.decode.joules, report.joules_per_token) == (None, None)
    assert report.decode.reason is not None and "at least 5 are needed" in report.decode.reason
    assert report.prefill.joules is None  # the very first one is empty
    assert report.joules == pytest.approx(41, rel=0.02)


def test_a_report_is_json() -> None:
    import json

    told = json.loads(json.dumps(asdict(Bench(Simulated()).run())))
    assert {"joules", "joules_per_token", "mean_w", "peak_w", "samples", "coverage"} <= told.keys()
    assert {"source", "total_is", "rails", "idle", "prefill", "decode", "reason"} <= told.keys()
    assert told["decode"]["joules"] == pytest.approx(20)


@pytest.mark.parametrize("period", [0.05, 0.35, 1.0])
def test_the_idle_baseline_has_nothing_of_the_time_before(period: float) -> None:
    """Behind a change from 40 to 5 W, of a sensor that tells the mean of its last period."""

    def mean(at: float) -> float:
        return 5 + 35 * min(1.0, max(0.0, (1003 - (at - period)) / period))

    source = Simulated(mean)
    source.poll_s = source.update_s = period
    bench = Bench(source)
    bench.sleep(1003 - bench.now)
    idle = bench.meter.measure_idle(6)
    assert idle.mean_w == pytest.approx(5, rel=1e-12)
    assert idle.seconds == pytest.approx(6, abs=period)
    assert idle.samples >= 5


def test_the_idle_baseline_stands_beside() -> None:
    bench = Bench(Simulated(lambda at: 4.0 if at < 1003 else 10.0))
    idle = bench.meter.measure_idle(2)
    bench.sleep(1)
    report = bench.run()
    assert idle.mean_w == pytest.approx(4) and idle.reason is None
    assert report.idle == idle
    assert report.mean_w == pytest.approx(10)  # nothing is subtracted


def test_without_a_mark_all_is_decoding() -> None:
    bench = Bench(Simulated())
    window = bench.meter.begin()
    bench.sleep(2)
    report = window.end(4)
    assert report.decode.joules == report.joules == pytest.approx(20)
    assert report.prefill.joules is None and report.prefill.reason == "the window is empty"


def test_no_tokens_no_quotient() -> None:
    report = Bench(Simulated()).run(tokens=0)
    assert report.decode.joules is not None
    assert report.joules_per_token is None


def test_one_token_is_too_short_for_a_slow_sensor() -> None:
    report = Bench(Simulated()).run(prefill=2, decode=0.03, tokens=1)
    assert report.decode.joules is None and report.joules_per_token is None
    assert report.decode.reason is not None
    assert report.decode.reason.endswith("at least 5 are needed")
    assert report.joules == pytest.approx(20.3)


def test_a_single_failure_is_no_gap() -> None:
    report = Bench(Failing(lambda at: 1002.0 < at < 1002.07)).run()
    assert report.joules == pytest.approx(30)


def test_a_gap_gives_no_figure_and_the_sensors_words() -> None:
    report = Bench(Failing(lambda at: 1002.5 < at < 1003)).run()
    assert report.joules is None and report.mean_w is None and report.peak_w is None
    assert report.joules_per_token is None
    assert report.prefill.joules == pytest.approx(10)
    assert report.decode.coverage < 1
    assert report.decode.reason is not None
    assert report.decode.reason.startswith("samples cover ")
    assert report.decode.reason.endswith(" (Input/output error)")
    assert report.rails == {"VDD_IN": None, "VDD_CPU_GPU_CV": None}


def test_a_sensor_that_dies() -> None:
    report = Bench(Failing(lambda at: at > 1002.5)).run()
    assert report.decode.joules is None
    assert report.decode.reason is not None
    assert "before its end (Input/output error)" in report.decode.reason


def test_a_sensor_that_never_gives_anything() -> None:
    report = Bench(Failing(lambda at: True)).run()
    assert report.joules is None and report.samples == 0 and report.coverage == 0
    assert report.reason == "0 samples in 3 s: at least 5 are needed (Input/output error)"
    assert report.total_is is None and report.rails == {}


def test_a_value_that_stays_the_same_sample_is_no_sample() -> None:
    """A service that stopped still shows its last value, with its last stamp."""

    class Stuck(Simulated):
        def read(self) -> Reading:
            return replace(super().read(), at=min(self.bench.now, 1002.5))

    report = Bench(Stuck()).run()
    assert report.decode.joules is None
    assert report.decode.reason is not None and "before its end" in report.decode.reason


def test_a_total_of_other_rails_is_no_sample() -> None:
    class Losing(Simulated):
        def read(self) -> Reading:
            rails = {"VDD_GPU_SOC": 3000.0, "VDD_CPU_CV": 1000.0}
            if self.bench.now > 1002.5:
                del rails["VDD_CPU_CV"]
            return self.board_reading(rails, self.bench.now)

    report = Bench(Losing()).run()
    assert report.total_is == "sum of VDD_GPU_SOC, VDD_CPU_CV"
    assert report.prefill.joules == pytest.approx(4)
    assert report.decode.joules is None
    assert report.decode.reason is not None
    assert "(the total was sum of VDD_GPU_SOC, VDD_CPU_CV and is sum of VDD_GPU_SOC)" in (
        report.decode.reason
    )


def test_what_a_window_is_made_of_stays_with_it_and_the_rest_is_forgotten() -> None:
    bench = Bench(Simulated())
    bench.sleep(100)
    assert len(bench.meter.readings()) < 20
    window = bench.meter.begin()
    bench.sleep(100)
    window.mark_decode()
    bench.sleep(1)
    window.end(1)
    assert window.stretches == [
        Stretch("prefill", 1100, 1200),
        Stretch("decode", 1200, pytest.approx(1201)),
    ]
    assert window.readings[0].at <= 1100 and window.readings[-1].at >= 1201
    assert len(window.readings) > 2000
    bench.sleep(1)
    assert len(bench.meter.readings()) < 20


class Real(Simulated):
    """10 W on the real clock."""

    def __init__(self) -> None:
        super().__init__()
        self.poll_s = self.update_s = 0.005
        self.threads: set[str] = set()

    def read(self) -> Reading:
        self.threads.add(threading.current_thread().name)
        return self.board_reading({"VDD_IN": 10000.0})


def test_on_a_thread_of_its_own() -> None:
    source = Real()
    with Meter(source) as meter:
        window = meter.begin()
        time.sleep(0.3)
        report = window.end(3)
    assert report.joules == pytest.approx(10 * report.seconds)
    assert report.coverage == 1 and report.samples >= 5
    assert report.sampling_share is not None and 0 < report.sampling_share < 1
    assert source.threads == {"power meter"}
    assert source.closed and not meter._thread.is_alive()


def test_a_fault_of_the_source_is_told_and_the_run_goes_on() -> None:
    class Broken(Real):
        def read(self) -> Reading:
            raise ZeroDivisionError("division by zero")

    with Meter(Broken()) as meter:
        report = meter.begin().end(1)
    assert report.joules is None
    assert report.reason is not None
    assert report.reason.endswith("(ZeroDivisionError: division by zero)")


def test_a_sensor_that_hangs_does_not_hold_the_meter() -> None:
    release = threading.Event()

    class Hanging(Real):
        def read(self) -> Reading:
            release.wait()
            raise SourceError("too late")

    with Meter(Hanging()) as meter:
        report = meter.begin().end(1)
    release.set()
    assert report.joules is None and report.samples == 0
