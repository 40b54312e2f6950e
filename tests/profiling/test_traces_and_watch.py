"""Power over time in few points, and who tells clocks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bitmtp_edge.power.clocks import ClockReader
from bitmtp_edge.power.report import Stretch
from bitmtp_edge.power.source import Reading, SourceError
from bitmtp_edge.profiling import watch
from bitmtp_edge.profiling.traces import MOST, TraceRecorder
from bitmtp_edge.profiling.watch import open_clocks

from ..power import trees


def window(first: float, count: int, every: float, watts: float) -> Any:
    readings = [
        Reading(first + i * every, {"GPU": 1000 * watts}, 1000 * watts, "GPU", "fake")
        for i in range(count)
    ]
    end = first + count * every
    stretches = [Stretch("prefill", first, first), Stretch("decode", first + 1, end)]
    return SimpleNamespace(readings=readings, stretches=stretches)


def test_windows_follow_each_other_from_the_first_reading_on() -> None:
    recorder = TraceRecorder()
    assert recorder.trace() is None
    recorder.add(window(1000.0, 4, 0.5, 10.0))
    recorder.add(window(1001.5, 3, 0.5, 20.0))  # shares its first reading
    trace = recorder.trace()
    assert trace is not None
    assert trace.seconds == (0, 0.5, 1.0, 1.5, 2.0, 2.5)
    assert trace.watts == (10, 10, 10, 20, 20, 20)
    assert trace.stretches == (Stretch("decode", 1, 2), Stretch("decode", 2.5, 3))  # no empty ones


def test_many_readings_are_averaged() -> None:
    recorder = TraceRecorder()
    recorder.add(window(0.0, 5 * MOST, 0.05, 7.0))
    trace = recorder.trace()
    assert trace is not None
    assert len(trace.seconds) == len(trace.watts) == MOST
    assert set(trace.watts) == {7.0}
    assert trace.seconds[1] - trace.seconds[0] == pytest.approx(0.25)


class Driver:
    """Stands for NvmlClocks."""

    opened: list[str | None]
    closed: int

    def __init__(self, gpu: str | None) -> None:
        type(self).opened.append(gpu)

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> type[Driver]:
    Driver.opened, Driver.closed = [], 0
    monkeypatch.setattr(watch, "NvmlClocks", Driver)
    return Driver


ON_GPU: Any = SimpleNamespace(device="NVIDIA H200", gpu="GPU-1")
ON_CPU: Any = SimpleNamespace(device=None, gpu=None)


def test_a_gpu_by_its_driver(driver: type[Driver], tmp_path: Path) -> None:
    with pytest.raises(SourceError), open_clocks(ON_GPU, tmp_path) as clocks:
        assert isinstance(clocks, Driver)
        raise SourceError("of the work, and not of the driver")
    assert (driver.opened, driver.closed) == (["GPU-1"], 1)


def test_a_board_and_a_processor_by_the_kernel(driver: type[Driver], tmp_path: Path) -> None:
    with open_clocks(ON_CPU, tmp_path) as clocks:
        assert isinstance(clocks, ClockReader)
    trees.write(tmp_path / "sys/class/devfreq/17000000.gpu/cur_freq", 612_000_000)
    with open_clocks(ON_GPU, tmp_path) as clocks:
        assert clocks.read().gpu_mhz == 612
    assert driver.opened == []


def test_a_driver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(gpu: str | None) -> None:
        raise SourceError("no NVIDIA driver library")

    monkeypatch.setattr(watch, "NvmlClocks", refuse)
    with open_clocks(ON_GPU, tmp_path) as clocks:
        assert isinstance(clocks, ClockReader)
