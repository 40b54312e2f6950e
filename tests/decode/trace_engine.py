"""An engine that plays back how drafts fared, and adds up what its steps would cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from bitmtp_edge.decode.costs import CostTable, StepTime
from bitmtp_edge.decode.energy_costs import PowerTable, StepPower, powered_states
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import Policy
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import Engine, ReplayState, StepOutput, Window

TAU = 0.9
Trace = Sequence[tuple[int, int]]
"""(h, a) of a draft block behind every position: confident, and right."""


class TraceEngine(Engine):
    """The right token is always 1. Behind ``n`` tokens, h drafts are confident, a right: those of
    ``trace[n]``. ``ms`` is the sum of what the steps cost by ``costs``, ``mj`` by ``power`` too;
    ``clock`` shows the sum of all engines."""

    name = "trace"
    all_ms = 0.0

    def __init__(
        self, trace: Trace, costs: CostTable, segment: int, power: PowerTable | None = None
    ) -> None:
        self._trace = trace
        self._costs = costs
        self._power = power
        self._segment = segment
        self.ms = self.mj = 0.0

    @property
    def segment(self) -> int:
        return self._segment

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        ms = self._costs.ms(state.role, state.width, state.outputs, window.history_length)
        self.ms += ms
        if self._power is not None:
            self.mj += ms * self._power.watts(state.role, state.width)
        TraceEngine.all_ms += ms
        tokens = np.ones((state.outputs, 1), np.int32)
        probability = np.ones((state.outputs, 1), np.float32)
        if state.role == "draft":
            confident, right = self._trace[window.positions[window.head_slots[0]] + 1]
            tokens[right:] = 0
            probability[confident:] = TAU / 2
        return StepOutput(tokens, probability)

    def promote(self, rows: Sequence[int], at: int) -> None:
        pass

    def grow(self, segment: int, rows: int) -> None:
        self._segment = segment

    def close(self) -> None:
        pass


def clock() -> float:
    """Seconds, in which nothing takes time but steps."""
    return 1e-3 * TraceEngine.all_ms


def states_of(block: int, context: int) -> ReplayStates:
    """Those of an exported bundle."""
    powers = {(1 << power) + 1 for power in range(block.bit_length())}
    return ReplayStates(
        (context,),
        tuple(range(1, 2 * block)),
        tuple(sorted({1, 2, 3, block + 1, 2 * block + 1, *powers})),
        128,
        context,
        draft_outputs=block,
        draft_rows_final=True,
        mask_embeddings=1,
    )


def cost_table(
    states: ReplayStates, ms: Callable[[int], float], output_ms: float = 0.02
) -> CostTable:
    """A step of w slots and o outputs costs ms(w) + o * output_ms; attention a little more."""
    kinds = {(s.role, s.width, s.outputs) for s in states.all()}
    steps = [
        StepTime(role, width, outputs, cost, cost * 1.05)
        for role, width, outputs in sorted(kinds)
        for cost in [ms(width) + outputs * output_ms]
    ]
    return CostTable(64, 512, tuple(steps))


def power_table(states: ReplayStates, watts: Callable[[int], float]) -> PowerTable:
    """A step of w slots draws watts(w), of either role."""
    steps = (StepPower(s.role, s.width, watts(s.width)) for s in powered_states(states))
    return PowerTable("trace", "all", tuple(steps))


def ms_a_token(policy: Policy, trace: Trace, costs: CostTable, states: ReplayStates) -> float:
    """What decoding to the end of ``trace`` costs, a prompt of one token apart."""
    return costs_a_token(policy, trace, costs, states)[0]


def costs_a_token(
    policy: Policy,
    trace: Trace,
    costs: CostTable,
    states: ReplayStates,
    power: PowerTable | None = None,
) -> tuple[float, float]:
    """Milliseconds, and with ``power`` millijoules."""
    engine = TraceEngine(trace, costs, states.segments[-1], power)
    decoder = Decoder(engine, states, policy)
    decoder.prefill([1])
    tokens = sum(len(each.tokens) for each in decoder.iterations(len(trace)))
    return engine.ms / tokens, engine.mj / tokens


def make_trace(
    draw: random.Random, length: int, block: int, skill: Callable[[int, int], float], sure: float
) -> list[tuple[int, int]]:
    """Every token has a difficulty, which lasts for some tokens. Behind n tokens, the j-th draft is
    right if that of token n + j is below ``skill(n, j)``, and confident if below ``sure`` times
    that; the first, which is AR's own, is always right. So all policies meet the same text."""
    difficulty, level = [], 0.5
    for _ in range(length + block + 1):
        if draw.random() < 0.4:
            level = draw.random()
        difficulty.append(level if draw.random() < 0.7 else draw.random())

    def run(n: int, share: float) -> int:
        for j in range(block):
            if difficulty[n + j] >= share * skill(n, j):
                return j
        return block

    return [(run(n, sure), max(run(n, 1.0), 1)) for n in range(length)]
