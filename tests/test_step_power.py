"""What steps draw: the load is the step's own as long as the sensor looks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bitmtp_edge import step_power
from bitmtp_edge.engines.base import ReplayState, StepOutput, Window, check_window
from bitmtp_edge.errors import UserError
from bitmtp_edge.power.meter import Meter
from bitmtp_edge.power.registry import METER_ORDER_CPU, METER_ORDER_GPU
from bitmtp_edge.power.source import Reading, Source, SourceError, Where
from bitmtp_edge.step_power import measure_power, measuring_seconds, open_source_of

from .decode.fake_engines import NullEngine
from .decode.trace_engine import states_of

STATES = states_of(4, 512)
IDLE_W = 3.0
STEP_S = 0.004


def watts_of(state: ReplayState) -> float:
    return 10.0 + state.width + 0.5 * (state.role == "draft")


class Machine(NullEngine, Source):
    """An engine and the sensor of it, on a clock of their own. Between steps it draws little."""

    name = "machine"  # type: ignore[misc]

    def __init__(self, counts: bool, update_s: float = 0.1) -> None:
        super().__init__(512)
        self.now, self.watts, self.joules = 50.0, IDLE_W, 0.0
        self.poll_s, self.update_s = 0.025, update_s
        self.counts = counts
        self.broken = False
        self.meter: Meter | None = None
        self.seen: list[ReplayState] = []
        self.shown = self.now, self.watts, self.joules

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        check_window(state, window)
        assert window.history_length == 256
        self.seen.append(state)
        self.watts = watts_of(state)
        self.pass_time(STEP_S)
        self.watts = IDLE_W
        return super().replay(state, window)

    def promote(self, rows: object, at: int) -> None:
        raise AssertionError("measuring writes no history")

    def pass_time(self, seconds: float) -> None:
        before = self.now
        self.now += seconds
        self.joules += seconds * self.watts
        if int(before / self.update_s) != int(self.now / self.update_s):
            self.shown = self.now, self.watts, self.joules
        if self.meter is not None and int(before / 0.025) != int(self.now / 0.025):
            self.meter.tick()

    def read(self) -> Reading:
        if self.broken:
            raise SourceError("it has come off")
        at, watts, _ = self.shown
        return Reading(at, {"all": 1000 * watts}, 1000 * watts, "all", "machine")

    def counter(self) -> float | None:
        if not self.counts:
            return None
        self.now += 0.001
        self.joules += 0.001 * self.watts
        if int((self.now - 0.001) / self.update_s) != int(self.now / self.update_s):
            self.shown = self.now, self.watts, self.joules
        return self.shown[2]


class Threadless(Meter):
    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.source.close()


def meter_of(machine: Machine) -> Callable[[Source, Callable[[float], None]], Meter]:
    def make(source: Source, wait: Callable[[float], None]) -> Meter:
        machine.meter = Threadless(source, clock=lambda: machine.now, sleep=wait)
        return machine.meter

    return make


@pytest.mark.parametrize("counts", [True, False])
def test_every_width_of_both_roles_is_measured_under_its_own_load(
    counts: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(counts)
    power = measure_power(machine, STATES, machine, meter_of(machine), lambda: machine.now)
    assert power.fits(STATES)
    assert (power.source, power.total_is) == ("machine", "all")
    for state in set(machine.seen):
        assert power.watts(state.role, state.width) == pytest.approx(watts_of(state), rel=0.02)
    assert {state.width for state in machine.seen if state.role == "draft"} == set(range(1, 8))
    assert all(state.outputs == state.width for state in machine.seen if state.role == "verify")
    assert "power of steps: 100%" in capsys.readouterr().err


@pytest.mark.parametrize("update_s", [0.1, 1.0])
def test_it_takes_about_as_long_as_is_told(update_s: float) -> None:
    """At least half a second a state, and enough for what the sensor shows once a second."""
    machine = Machine(False, update_s)
    began = machine.now
    measure_power(machine, STATES, machine, meter_of(machine), lambda: machine.now)
    told = measuring_seconds(STATES, machine)
    assert machine.now - began == pytest.approx(told, rel=0.25)
    least = max(0.5, 5 * update_s)
    assert told > least * len(set(machine.seen))


def test_no_figure_is_told_and_never_made_up() -> None:
    machine = Machine(False)
    machine.broken = True
    with pytest.raises(UserError, match=r"machine gives no figure: .*it has come off.*speed"):
        measure_power(machine, STATES, machine, meter_of(machine), lambda: machine.now)


@pytest.mark.parametrize("device", [None, "a GPU"])
def test_the_sensor_is_of_what_the_engine_runs_on(
    device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[object] = []

    def none(name: str = "auto", where: object = None, order: object = ()) -> Source:
        orders.append(order)
        raise UserError("no power source works here: nvml: no driver")

    monkeypatch.setattr(step_power, "open_source", none)
    engine = NullEngine(512)
    monkeypatch.setattr(NullEngine, "device", device, raising=False)
    with pytest.raises(UserError) as refused:
        open_source_of(engine, Where())
    assert orders == [METER_ORDER_CPU if device is None else METER_ORDER_GPU]
    assert str(refused.value) == (
        "the objective energy needs to know what steps draw, and no power source works here: nvml: "
        "no driver: take the objective speed; bitmtp-edge power tells of each source"
    )
