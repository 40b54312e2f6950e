"""What a step costs on one engine and machine, by replay state: measured, then looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import NamedTuple

from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import Engine, ReplayState, Role, StagedWindow

BUDGET_S = 0.8  # of all states together, where the fewest runs of each take less
RUNS = 8  # of a state, at least
DEAR_S = 0.2  # a state that took this long has enough
DEAR_RUNS = 3  # runs
AHEAD = 8  # AR steps that are begun before their token is read, where an engine can
LEAST_MS, MOST_MS = 1e-6, 1e9  # no step takes less, or more

SPREAD_S = 0.25  # of the AR step, to see whether the machine is busy
STEADY = 1.5  # times its fastest run, at most, that a step's median run takes

_Turn = tuple[ReplayState, int]


@dataclass(frozen=True)
class StepTime:
    """Milliseconds of a step of one kind, behind ``CostTable.short`` and ``.long`` rows: the first
    quartile of some runs, since what else the machine does only ever adds."""

    role: str
    width: int
    outputs: int
    short_ms: float
    long_ms: float


class Measurement(NamedTuple):
    """spread: the median of a step's runs over the fastest, of the step where that is most. Far
    above 1, something else had the machine: a load that never ends slows the quartiles alike, and
    only a lucky run shows it."""

    costs: CostTable
    spread: float

    @property
    def steady(self) -> bool:
        return self.spread <= STEADY


@dataclass(frozen=True)
class CostTable:
    """Steps behind ``short`` and behind ``long`` rows of history; attention's share grows with the
    history in between and beyond, the rest does not."""

    short: int
    long: int
    steps: tuple[StepTime, ...]

    def ms(self, role: Role, width: int, outputs: int, history: int) -> float:
        """Milliseconds of a step behind ``history`` rows. An output more or less than were measured
        at this width costs what it does in a verify step. KeyError for a width that was not.
        """
        steps = self._by_width[role, width]
        step = min(steps, key=lambda each: abs(each.outputs - outputs))
        extra = outputs - step.outputs
        return self._at(step, history) + (extra * self._output_ms(width) if extra else 0.0)

    def fits(self, states: ReplayStates) -> bool:
        """Whether these are times of every step of ``states``, and nothing else: those of a file
        may be anything."""
        kinds = sorted({(state.role, state.width, state.outputs) for state in states.all()})
        return (
            kinds == sorted((step.role, step.width, step.outputs) for step in self.steps)
            and 0 <= self.short < self.long <= states.context
            and all(
                LEAST_MS <= ms <= MOST_MS
                for step in self.steps
                for ms in (step.short_ms, step.long_ms)
            )
        )

    @property
    def ar_ms(self) -> float:
        """An autoregressive step behind ``short`` rows: what others are compared with."""
        return self.ms("verify", min(w for r, w in self._by_width if r == "verify"), 1, self.short)

    @cached_property
    def _by_width(self) -> dict[tuple[str, int], list[StepTime]]:
        found: dict[tuple[str, int], list[StepTime]] = {}
        for step in self.steps:
            found.setdefault((step.role, step.width), []).append(step)
        return found

    def _at(self, step: StepTime, history: int) -> float:
        slope = (step.long_ms - step.short_ms) / max(self.long - self.short, 1)
        return step.short_ms + max(slope, 0.0) * (history - self.short)

    def _output_ms(self, width: int) -> float:
        """One more output, by the verify steps of the width nearest to ``width``."""
        pairs = [
            (min(steps, key=lambda s: s.outputs), max(steps, key=lambda s: s.outputs))
            for (role, _), steps in self._by_width.items()
            if role == "verify" and len(steps) > 1
        ]
        if not pairs:
            return 0.0
        few, many = min(pairs, key=lambda pair: abs(pair[0].width - width))
        return max(many.short_ms - few.short_ms, 0.0) / (many.outputs - few.outputs)


def measure_costs(
    engine: Engine, states: ReplayStates, clock: Callable[[], float] = perf_counter
) -> Measurement:
    """Times a step of every state of the segment in use, making of its window included.

    The long history fills that segment, which is as long as one gets before it is copied to a
    larger one; the short one is an eighth of it. States take turns, so that a busy moment of the
    machine touches all of them, and the cheap ones run oftener. No history row is written: a
    sequence that the engine holds stays as it is.
    """
    long = min(engine.segment, states.context)
    short = long // 8
    kinds = [state for state in states.all() if state.segment == engine.segment]
    samples = {(state, history): _Runs() for state in kinds for history in (short, long)}
    for turn in samples:
        run_steps(engine, *turn)  # plans are made at first use
    share = BUDGET_S / len(samples)
    turns = list(samples)
    while turns:
        for turn in turns:
            samples[turn].take(engine, turn, clock)
        turns = [turn for turn in turns if not samples[turn].enough(share)]
    ordered = {turn: sorted(runs.seconds) for turn, runs in samples.items()}
    times = {turn: runs[len(runs) // 4] for turn, runs in ordered.items()}
    spread = max(map(_spread, ordered.values()))
    for history in (short, long):
        _smooth(times, [(state, history) for state in kinds])
    steps = tuple(
        StepTime(
            state.role,
            state.width,
            state.outputs,
            1e3 * times[state, short],
            1e3 * times[state, long],
        )
        for state in kinds
    )
    return Measurement(CostTable(short, long, steps), spread)


class _Runs:
    """Seconds of each run of a step; ``spent``: of all of them, where a run is several steps."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.spent = 0.0

    def take(self, engine: Engine, turn: _Turn, clock: Callable[[], float]) -> None:
        began = clock()
        steps = run_steps(engine, *turn)
        took = clock() - began
        self.seconds.append(took / steps)
        self.spent += took

    def enough(self, share: float) -> bool:
        if self.spent >= DEAR_S:
            return len(self.seconds) >= DEAR_RUNS
        return len(self.seconds) >= RUNS and self.spent >= share


def _smooth(times: dict[_Turn, float], turns: list[_Turn]) -> None:
    """A wider step is no cheaper: where it was, the runs of both are averaged (the least squares
    that do not fall)."""
    for role in ("draft", "verify"):
        for one_output in (False, True):
            group = [
                turn
                for turn in turns
                if turn[0].role == role and (turn[0].outputs == 1 < turn[0].width) == one_output
            ]
            group.sort(key=lambda turn: turn[0].width)
            means: list[tuple[float, int]] = []
            for turn in group:
                total, count = times[turn], 1
                while means and means[-1][0] > total / count:
                    mean, more = means.pop()
                    total, count = total + mean * more, count + more
                means.append((total / count, count))
            smooth = [mean for mean, count in means for _ in range(count)]
            times.update(zip(group, smooth, strict=True))


def step_spread(
    engine: Engine, states: ReplayStates, clock: Callable[[], float] = perf_counter
) -> float:
    """:attr:`Measurement.spread` of the AR step alone, in a quarter of a second or a few steps: to
    see whether the machine is busy. The engine's sequence stays as it is."""
    narrowest = min(
        (s for s in states.all() if s.segment == engine.segment and s.role == "verify"),
        key=lambda state: (state.width, state.outputs),
    )
    turn = narrowest, min(engine.segment, states.context) // 8
    run_steps(engine, *turn)
    runs = _Runs()
    while not runs.enough(SPREAD_S):
        runs.take(engine, turn, clock)
    return _spread(sorted(runs.seconds))


def _spread(ordered: list[float]) -> float:
    return ordered[len(ordered) // 2] / max(ordered[0], 1e-3 * LEAST_MS)


def run_steps(engine: Engine, state: ReplayState, history: int) -> int:
    """A step of ``state`` behind ``history`` rows, whatever these are: it writes none. Of AR steps
    some, as decoding has them, where the engine begins them before their token is read. Returns how
    many."""
    tokens = [0] * (history + state.width)
    heads = min(state.outputs, state.width)
    window = causal_window(tokens, history, (), state.width, heads, state.outputs)
    output = engine.start(state, window)
    done = 1
    while (state.role, state.width) == ("verify", 1) and done <= AHEAD:
        following = engine.start_staged(state, StagedWindow((), history, output, 1, heads=1))
        if following is None:
            break
        _ = output.token_ids  # waits
        output = following
        done += 1
    _ = output.token_ids
    return done
