"""What steps cost: measured by turns, looked up between and beyond what was measured."""

from __future__ import annotations

import pytest

from bitmtp_edge.decode.costs import (
    AHEAD,
    STEADY,
    CostTable,
    StepTime,
    measure_costs,
    step_spread,
)
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import (
    ReplayState,
    StagedStep,
    StagedWindow,
    StepOutput,
    Window,
    check_window,
)

from .fake_engines import NullEngine
from .trace_engine import states_of

STATES = states_of(4, 512)


class ClockEngine(NullEngine):
    """Steps that take the time they are said to, on a clock of its own; some are disturbed."""

    def __init__(self) -> None:
        super().__init__(512)
        self.now = 0.0
        self.seen: dict[tuple[ReplayState, int], int] = {}

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        check_window(state, window)
        turn = state, window.history_length
        self.seen[turn] = self.seen.get(turn, 0) + 1
        role = 2 if state.role == "draft" else 1
        self.now += role * state.width + state.outputs / 10 + window.history_length / 1000
        if self.seen[turn] == 3:
            self.now += 1000  # another program
        return super().replay(state, window)

    def promote(self, rows: object, at: int) -> None:
        raise AssertionError("measuring writes no history")


def test_every_state_is_measured_and_a_disturbed_run_is_not_believed() -> None:
    engine = ClockEngine()
    measured = measure_costs(engine, STATES, clock=lambda: engine.now)
    costs = measured.costs
    assert measured.steady and measured.spread == pytest.approx(1)
    assert (costs.short, costs.long) == (64, 512)
    kinds = {(state.role, state.width, state.outputs) for state in STATES.all()}
    assert {(step.role, step.width, step.outputs) for step in costs.steps} == kinds
    assert min(engine.seen.values()) == 4  # one to make the plan, and three of the dear ones
    for role, width, outputs in kinds:
        own = (2 if role == "draft" else 1) * width + outputs / 10
        for history in (0, 64, 300, 512, 4000):
            expected = 1e3 * (own + history / 1000)
            assert costs.ms(role, width, outputs, history) == pytest.approx(expected)
    assert costs.ar_ms == pytest.approx(1e3 * 1.164)


def test_ar_steps_are_timed_as_they_run_one_behind_the_other() -> None:
    """A step takes 1 in the device and 0.5 in the host; one that is begun ahead hides the host."""

    class Staging(ClockEngine):
        def replay(self, state: ReplayState, window: Window) -> StepOutput:
            self.now += state.width
            return NullEngine.replay(self, state, window)

        def start(self, state: ReplayState, window: Window) -> StepOutput:
            self.now += 0.5
            return self.replay(state, window)

        def stage(self, state: ReplayState, window: StagedWindow) -> StagedStep:
            assert (state.role, state.width) == ("verify", 1) and window.rows == window.heads == 1
            return Staged(self, state, window)

    class Staged(StagedStep):
        def __init__(self, engine: Staging, state: ReplayState, window: StagedWindow) -> None:
            self.engine, self.state, self.window = engine, state, window

        def start(self) -> StepOutput:
            history = self.window.history_length
            window = causal_window([0] * (history + 1), history, (), 1, 1, 1)
            return self.engine.replay(self.state, window)

    engine = Staging()
    costs, _ = measure_costs(engine, STATES, clock=lambda: engine.now)
    assert costs.ar_ms == pytest.approx(1e3 * (1 + 0.5 / (AHEAD + 1)))


def test_a_load_that_never_ends_shows_in_a_lucky_run() -> None:
    class Loaded(ClockEngine):
        def replay(self, state: ReplayState, window: Window) -> StepOutput:
            assert (state.role, state.width, state.outputs) == ("verify", 1, 1)
            lucky = self.seen.get((state, window.history_length)) == 1
            self.now += 0 if lucky else 5
            return super().replay(state, window)

    for engine, busy in ((Loaded(), True), (ClockEngine(), False)):
        spread = step_spread(engine, STATES, clock=lambda engine=engine: engine.now)  # type: ignore[misc]
        assert (spread > STEADY) is busy


def test_a_step_that_takes_now_this_and_now_that_is_not_steady() -> None:
    """Of one step alone, a second run was disturbed."""

    class Busy(ClockEngine):
        def replay(self, state: ReplayState, window: Window) -> StepOutput:
            once = self.seen.get((state, window.history_length)) == 3
            self.now += 40.0 * (once and state.role == "draft" and state.width == 2)
            return super().replay(state, window)

    engine = Busy()
    assert not measure_costs(engine, STATES, clock=lambda: engine.now).steady


def test_a_wider_step_is_no_cheaper() -> None:
    """A quarter of the runs and more were disturbed: widths 2 and 3 share what they took."""

    class Busy(ClockEngine):
        def replay(self, state: ReplayState, window: Window) -> StepOutput:
            self.now += 5.0 * (state.role == "draft" and state.width == 2)
            return super().replay(state, window)

    engine = Busy()
    costs, _ = measure_costs(engine, STATES, clock=lambda: engine.now)
    two, three, four = (costs.ms("draft", width, width, 64) for width in (2, 3, 4))
    assert two == three == pytest.approx(1e3 * (4 + 5 + 6 + 0.5 + 2 * 0.064) / 2)
    assert four == pytest.approx(1e3 * (8 + 0.4 + 0.064))


def test_outputs_that_were_not_measured_cost_what_they_do_in_a_verify_step() -> None:
    engine = ClockEngine()
    costs, _ = measure_costs(engine, STATES, clock=lambda: engine.now)
    assert costs.ms("draft", 7, 2, 64) == pytest.approx(1e3 * (14 + 0.2 + 0.064))
    assert costs.ms("draft", 2, 1, 64) == pytest.approx(1e3 * (4 + 0.1 + 0.064))


def test_a_width_that_was_not_measured_has_no_cost() -> None:
    costs = CostTable(64, 512, (StepTime("verify", 1, 1, 1.0, 1.0),))
    with pytest.raises(KeyError):
        costs.ms("verify", 2, 1, 64)


def test_a_longer_history_never_makes_a_step_cheaper() -> None:
    costs = CostTable(64, 512, (StepTime("verify", 1, 1, 1.1, 1.0),))
    assert costs.ms("verify", 1, 1, 4096) == 1.1
