"""What a step draws on one engine, machine and power mode: watts by replay state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import ReplayState, Role

LEAST_W, MOST_W = 1e-3, 1e5  # no machine draws less, or more


@dataclass(frozen=True)
class StepPower:
    """Mean watts while steps of one kind follow each other."""

    role: str
    width: int
    watts: float


@dataclass(frozen=True)
class PowerTable:
    """Power of steps. source, total_is: the sensor, and which of its rails the watts are of.

    Power is taken not to depend on the outputs of a step, or on its history: what takes longer
    takes more joules at the same watts. So joules of any step are its watts times its seconds.
    """

    source: str
    total_is: str
    steps: tuple[StepPower, ...]

    def watts(self, role: Role, width: int) -> float:
        """KeyError for a width that was not measured."""
        return self._by_width[role, width]

    def fits(self, states: ReplayStates) -> bool:
        """Whether this is the power of every step that decodes in ``states``, and of nothing else:
        that of a file may be anything."""
        kinds = sorted((state.role, state.width) for state in powered_states(states))
        return kinds == sorted((step.role, step.width) for step in self.steps) and all(
            LEAST_W <= step.watts <= MOST_W for step in self.steps
        )

    @cached_property
    def _by_width(self) -> dict[tuple[str, int], float]:
        return {(step.role, step.width): step.watts for step in self.steps}


def powered_states(states: ReplayStates, segment: int | None = None) -> list[ReplayState]:
    """A state of every role and width that decoding of blocks takes, with the most outputs, narrow
    ones first. segment: its KV rows, of the smallest one if None."""
    segment = states.segments[0] if segment is None else segment
    widest_verify = states.width("verify", states.draft_outputs + 1, states.draft_outputs + 1)
    widest: dict[tuple[str, int], ReplayState] = {}
    for state in states.all():
        wide = state.role == "verify" and state.width > widest_verify
        if state.segment == segment and not wide:
            key = state.role, state.width
            if key not in widest or state.outputs > widest[key].outputs:
                widest[key] = state
    return sorted(widest.values(), key=lambda state: (state.width, state.role))
