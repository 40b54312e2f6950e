"""``--objective speed|energy``: within 3 % of the best fixed choice over a whole trace, learning
included, on traces that change character and back.

The traces are recorded (test_adaptive.RECORDED) and what steps cost is made up: every figure here
is the same on every machine. ``python -m tests.decode.test_objective`` prints them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest

from bitmtp_edge.decode.adaptive import Adaptive
from bitmtp_edge.decode.costs import CostTable
from bitmtp_edge.decode.energy_costs import PowerTable, StepPower
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    BlockPolicy,
    ConfidenceOnly,
    Hybrid,
    Policy,
    SpeculativeOnly,
)
from bitmtp_edge.decode.prices import AR, default_min_prefix

from .test_adaptive import BLOCK, RECORDED, STATES
from .trace_engine import TAU, Trace, clock, cost_table, costs_a_token, power_table

OBJECTIVES = ("speed", "energy")
WIDTH = Callable[[int], float]


class Machine(NamedTuple):
    costs: CostTable
    power: PowerTable


def machine(ms: WIDTH, watts: WIDTH) -> Machine:
    return Machine(cost_table(STATES, ms), power_table(STATES, watts))


MACHINES = {
    # A wide step takes hardly longer, and draws much more.
    "server": machine(lambda width: 1 + 0.01 * width, lambda width: 200 + 45.0 * width),
    # It takes longer, and draws a little more.
    "board": machine(lambda width: 0.9 + 0.075 * width, lambda width: 8 + 0.25 * width),
    # It takes much longer, and most of its joules are those of reading the weights.
    "reader": machine(
        lambda width: 0.7 + 0.3 * width, lambda width: (9 + 0.4 * width) / (0.7 + 0.3 * width)
    ),
}


def changing(*parts: str) -> Trace:
    """A piece of each recorded trace after the other; a text that comes again goes on."""
    length = 3 * 960 // len(parts)
    found: list[tuple[int, int]] = [(0, 1)]
    for index, name in enumerate(parts):
        recorded = RECORDED[name]
        begin = length * parts[:index].count(name)
        found += (recorded * 3)[begin : begin + length]
    return found


TRACES = {
    "maths, then chat": changing("worked maths", "chat"),
    "chat, then maths": changing("chat", "worked maths"),
    "maths, chat, maths": changing("worked maths", "chat", "worked maths"),
    "code, maths, code": changing("code", "worked maths", "code"),
}


class Cost(NamedTuple):
    speed: float
    energy: float


def cost(policy: Policy, trace: str, on: str) -> Cost:
    """Milliseconds and millijoules a token."""
    costs, power = MACHINES[on]
    return Cost(*costs_a_token(policy, TRACES[trace], costs, STATES, power))


SIZES = range(2, BLOCK + 1)
FIXED: dict[str, list[Policy]] = {
    "ar": [AutoRegressive()],
    "speculative": [SpeculativeOnly(size) for size in SIZES],
    "confidence": [ConfidenceOnly(size, TAU) for size in SIZES],
    "hybrid": [Hybrid(s, TAU, least) for s in (2, 3, 4, 6, 8) for least in range(1, s + 1)],
}
RIVALS = {
    "speculative": ("ar", "speculative"),
    "confidence": ("ar", "confidence"),
    "hybrid": tuple(FIXED),
}
"""Of what each policy may become."""


@cache
def costs_of_fixed(trace: str, on: str) -> dict[Policy, tuple[str, Cost]]:
    return {
        policy: (name, cost(policy, trace, on)) for name, each in FIXED.items() for policy in each
    }


def best_fixed(name: str, trace: str, on: str, objective: str) -> tuple[float, Policy]:
    return min(
        (
            (getattr(found, objective), policy)
            for policy, (kind, found) in costs_of_fixed(trace, on).items()
            if kind in RIVALS[name]
        ),
        key=lambda pair: pair[0],
    )


def auto(name: str, on: str, objective: str) -> Adaptive:
    made: dict[str, BlockPolicy] = {
        "speculative": SpeculativeOnly(BLOCK),
        "confidence": ConfidenceOnly(BLOCK, TAU),
        "hybrid": Hybrid(BLOCK, TAU, 2),
    }
    costs, power = MACHINES[on]
    return Adaptive(made[name], costs, power=power if objective == "energy" else None, clock=clock)


def loss(name: str, trace: str, on: str, objective: str) -> float:
    """Of what is to be saved, what auto takes over the best fixed choice."""
    took = getattr(cost(auto(name, on, objective), trace, on), objective)
    return float(took / best_fixed(name, trace, on, objective)[0] - 1)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("on", MACHINES)
@pytest.mark.parametrize("trace", TRACES)
def test_within_three_percent_of_every_fixed_choice(trace: str, on: str, objective: str) -> None:
    losses = {name: loss(name, trace, on, objective) for name in RIVALS}
    assert max(losses.values()) <= 0.03, losses


def test_each_objective_saves_its_own() -> None:
    """On the server wide blocks are the fastest, and small ones or none take the fewest joules."""
    fast, frugal = (auto("hybrid", "server", objective) for objective in OBJECTIVES)
    trace = "code, maths, code"
    quick, saving = cost(fast, trace, "server"), cost(frugal, trace, "server")
    assert quick.speed < 0.9 * saving.speed
    assert saving.energy < 0.9 * quick.energy

    def mean_block(adaptive: Adaptive) -> float:
        total = sum(count for choice, count in adaptive.chosen.items() if choice != AR)
        return sum(choice.block * n for choice, n in adaptive.chosen.items()) / total

    assert mean_block(fast) > 1.5 * mean_block(frugal)


def test_the_default_min_prefix_is_by_joules_where_these_are_to_be_saved() -> None:
    """A verify step that draws little is worth taking oftener."""
    costs = cost_table(STATES, lambda width: 1 + 0.01 * width)
    steps = power_table(STATES, lambda width: 10.0).steps
    found = []
    for watts in (0.5, 10.0, 60.0):
        power = PowerTable(
            "trace",
            "all",
            tuple(
                StepPower(step.role, step.width, watts if step.role == "verify" else step.watts)
                for step in steps
            ),
        )
        found.append(default_min_prefix(Hybrid(BLOCK, TAU, 2), costs, STATES, power))
    assert found == sorted(found, reverse=True) and found[0] > found[-1]


def print_figures() -> None:
    for trace in TRACES:
        for on in MACHINES:
            for objective in OBJECTIVES:
                losses = [f"{name} {loss(name, trace, on, objective):+.1%}" for name in RIVALS]
                least, policy = best_fixed("hybrid", trace, on, objective)
                print(f"{trace:20} {on:8} {objective:7}", *losses, f"{least:.3g}", policy)


if __name__ == "__main__":
    print_figures()
