"""What steps draw: each replay state in turn, repeated for as long as the sensor needs."""

from __future__ import annotations

import time
from collections.abc import Callable

from .decode.costs import run_steps
from .decode.energy_costs import PowerTable, StepPower, powered_states
from .decode.replay_states import ReplayStates
from .engines.base import Engine, ReplayState
from .errors import UserError
from .power.meter import Meter
from .power.registry import AUTO, METER_ORDER_CPU, METER_ORDER_GPU, open_source
from .power.source import Source, Where
from .power.trace import MIN_SAMPLES
from .progress import Progress

LEAST_S = 0.5  # that a state is measured
UPDATES = MIN_SAMPLES + 1  # of the sensor, in that time at least
SETTLE_S = 0.2  # before that: clocks and the sensor follow a change of load


def open_source_of(engine: Engine, where: Where, name: str = AUTO) -> Source:
    """Sensor ``name``, of "auto" that of what ``engine`` runs on. Raises UserError where it, or
    none, works."""
    order = METER_ORDER_CPU if engine.device is None else METER_ORDER_GPU
    try:
        return open_source(name, where, order=order)
    except UserError as error:
        raise UserError(
            f"the objective energy needs to know what steps draw, and {error}: take the objective "
            "speed; bitmtp-edge power tells of each source"
        ) from None


def measuring_seconds(states: ReplayStates, source: Source) -> float:
    """How long :func:`measure_power` takes."""
    around = 2 * source.update_s  # until the sensor is known before and after
    return len(powered_states(states)) * (_settle_s(source) + _measure_s(source) + around)


def measure_power(
    engine: Engine,
    states: ReplayStates,
    source: Source,
    meter_of: Callable[[Source, Callable[[float], None]], Meter] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> PowerTable:
    """Mean watts while a step of each width and role is repeated, its window's making included.

    The machine stays loaded by the same step while the meter waits for its sensor, before and
    behind a stretch, so that what it fills in there is the step's. The states are of the segment in
    use and read half of its rows. No history row is written. For tests: meter_of, a meter of a
    source that passes its waits, of so many seconds, to a function; clock, of seconds. Raises
    UserError where a stretch has no figure.
    """
    load = _Load(engine, min(engine.segment, states.context) // 2, clock)
    steps, total_is = [], ""
    make = meter_of or (lambda source, wait: Meter(source, sleep=wait))
    kinds = powered_states(states, engine.segment)
    with make(source, load.run) as meter, Progress(len(kinds), "power of steps") as progress:
        for state in kinds:
            load.state = state
            load.run(_settle_s(source))
            window = meter.begin()
            load.run(_measure_s(source))
            energy = window.end(0)
            if energy.mean_w is None:
                raise UserError(
                    f"the objective energy needs to know what steps draw, and {source.name} gives "
                    f"no figure: {energy.reason}; take the objective speed, or try again"
                )
            steps.append(StepPower(state.role, state.width, energy.mean_w))
            total_is = energy.total_is or ""
            progress.advance()
    return PowerTable(source.name, total_is, tuple(steps))


class _Load:
    """Repeats one step, as decoding has it."""

    state: ReplayState

    def __init__(self, engine: Engine, history: int, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._history = history
        self._clock = clock

    def run(self, seconds: float) -> None:
        until = self._clock() + seconds
        while self._clock() < until:
            run_steps(self._engine, self.state, self._history)


def _measure_s(source: Source) -> float:
    return max(LEAST_S, UPDATES * source.update_s)


def _settle_s(source: Source) -> float:
    return max(SETTLE_S, source.update_s)
