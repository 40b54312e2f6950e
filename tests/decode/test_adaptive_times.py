"""`--block auto` beside an engine that runs on: what iterations take, and which there were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bitmtp_edge.decode.adaptive import Adaptive
from bitmtp_edge.decode.costs import CostTable
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import AutoRegressive, SpeculativeOnly
from bitmtp_edge.decode.prices import AR
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import ReplayState, StepOutput, Window

from .fake_engines import StagingEngine, Unread
from .test_adaptive import BLOCK, GPU, RECORDED, STATES, auto, make, trace_of
from .trace_engine import clock, cost_table, ms_a_token


def test_ar_spells_run_ahead() -> None:
    """Where AR steps are chosen, all begin before their token is read but those behind a search."""
    dear = cost_table(STATES, lambda width: float(width))
    states = STATES
    engine = StagingEngine(states, 4096)
    adaptive = auto(SpeculativeOnly(BLOCK), dear)
    decoder = Decoder(engine, states, adaptive)
    decoder.prefill([1, 2, 3])
    assert [token for it in decoder.iterations(803) for token in it.tokens] == engine.reply(
        [1, 2, 3], 800
    )
    assert set(adaptive.chosen) == {AR}
    assert 700 < engine.staged < 800


class DeviceEngine(StagingEngine):
    """Steps take what ``table`` says, on a device that does one after another; seconds ``now``."""

    def __init__(self, states: ReplayStates, table: CostTable) -> None:
        super().__init__(states, states.segments[-1])
        self._table = table
        self._free = self.now = 0.0

    def start(self, state: ReplayState, window: Window) -> StepOutput:
        made = super().start(state, window)
        assert isinstance(made, Unread)
        ms = self._table.ms(state.role, state.width, state.outputs, window.history_length)
        ended = self._free = max(self._free, self.now) + ms / 1e3

        def look() -> StepOutput:
            self.now = max(self.now, ended)
            return made.output

        return Unread(look, made.output)


@pytest.mark.parametrize("caller", [0.0, 0.5, 0.9])
def test_what_the_caller_does_beside_the_device_is_no_iterations_time(caller: float) -> None:
    """As long as it takes no longer than a step does: in AR steps."""
    engine = DeviceEngine(STATES, GPU)
    adaptive = Adaptive(SpeculativeOnly(BLOCK), GPU, clock=lambda: engine.now)
    decoder = Decoder(engine, STATES, adaptive)
    decoder.prefill([1, 2, 3])
    iterations, tokens = 0, []
    for iteration in decoder.iterations(503):
        iterations += 1
        tokens += iteration.tokens
        engine.now += caller * GPU.ar_ms / 1e3
    assert tokens == engine.reply([1, 2, 3], 500)
    assert adaptive.chosen.total() == iterations
    assert max(choice.block for choice in adaptive.chosen) > 0
    for choice, count in adaptive.chosen.items():
        if count > 20:
            assert adaptive._pace.of(choice.block) == pytest.approx(1, abs=0.03)


def test_an_iteration_that_nobody_asks_for_is_none() -> None:
    """It has begun where a reply stops: no choice that is told, and no time."""
    engine = DeviceEngine(STATES, GPU)
    adaptive = Adaptive(SpeculativeOnly(BLOCK), GPU, clock=lambda: engine.now)
    decoder = Decoder(engine, STATES, adaptive)
    decoder.prefill([1, 2, 3])
    for stops in range(1, 301):
        next(decoder.iterations(4 * STATES.context))
        engine.now += 1.0
        decoder.truncate(3 + 3 * stops)
        assert adaptive.chosen.total() == stops
    for block in (0, BLOCK):
        assert adaptive._pace.of(block) == pytest.approx(1, abs=0.03)


def misjudged(table: CostTable, dear: int) -> CostTable:
    """With steps of ``dear`` slots and more an eighth too dear."""
    return replace(
        table,
        steps=tuple(
            replace(s, short_ms=1.125 * s.short_ms, long_ms=1.125 * s.long_ms)
            if s.width >= dear
            else s
            for s in table.steps
        ),
    )


@pytest.mark.parametrize("policy", ["speculative", "hybrid"])
def test_what_iterations_take_counts_more_than_a_table(policy: str) -> None:
    """Block 8 is the best by a few percent, and by the table the worst."""
    table = cost_table(STATES, lambda width: 0.55 + 0.12 * width)
    trace, believed = trace_of("good"), misjudged(table, 8)
    fixed = [replace(make(policy), block=size) for size in (2, 4, 8)]
    best = min(ms_a_token(each, trace, table, STATES) for each in fixed)

    def loss_by(seconds: Callable[[], float]) -> float:
        adaptive = Adaptive(make(policy), believed, clock=seconds)
        return ms_a_token(adaptive, trace, table, STATES) / best - 1

    assert loss_by(clock) <= 0.03
    assert loss_by(clock) < loss_by(lambda: 0.0)


@pytest.mark.parametrize("policy", ["speculative", "hybrid"])
@pytest.mark.parametrize("name", RECORDED)
def test_a_host_that_only_blocks_wait_for(policy: str, name: str) -> None:
    """As on a GPU, where nothing of the host is left between AR steps: blocks take a third of an AR
    step more than the table says."""
    believed = cost_table(STATES, lambda width: 1 + 0.02 * width - 0.15 * (width == 1))
    table = replace(
        believed,
        steps=tuple(
            s
            if (s.role, s.width) == ("verify", 1)
            else replace(s, short_ms=s.short_ms + 0.35, long_ms=s.long_ms + 0.35)
            for s in believed.steps
        ),
    )
    trace = trace_of(name)
    rivals = [AutoRegressive(), *(replace(make(policy), block=size) for size in (2, 4, 8))]
    best = min(ms_a_token(each, trace, table, STATES) for each in rivals)
    adaptive = Adaptive(make(policy), believed, clock=clock)
    assert ms_a_token(adaptive, trace, table, STATES) <= 1.035 * best
