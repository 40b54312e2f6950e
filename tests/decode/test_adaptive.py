"""`--block auto`: near the best fixed choice on traces, whatever steps cost.

Costs are made up and nothing is timed, so every figure here is the same on every machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import pytest

from bitmtp_edge.decode.acceptance import Acceptance
from bitmtp_edge.decode.adaptive import Adaptive
from bitmtp_edge.decode.costs import CostTable
from bitmtp_edge.decode.loop import Decoder, Iteration
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    BlockPolicy,
    ConfidenceOnly,
    Hybrid,
    Policy,
    SpeculativeOnly,
)
from bitmtp_edge.decode.prices import (
    AR,
    Choice,
    Prices,
    default_min_prefix,
    rates,
    verified_rate,
)
from bitmtp_edge.decode.sampling import SamplingParams
from bitmtp_edge.errors import UserError

from .fake_engines import HashEngine
from .test_block_policies import final_states
from .trace_engine import (
    TAU,
    Trace,
    TraceEngine,
    clock,
    cost_table,
    make_trace,
    ms_a_token,
    power_table,
    states_of,
)

auto = partial(Adaptive, clock=clock)
BLOCK = 8
LENGTH = 2500
STATES = states_of(BLOCK, 4096)
GPU = cost_table(STATES, lambda width: 1 + 0.01 * width)
CPU = cost_table(STATES, lambda width: 0.9 + 0.075 * width)
SMALL = cost_table(STATES, lambda width: 0.6 + 0.4 * width)
HOPELESS = cost_table(STATES, lambda width: 0.2 + 0.8 * width)
COSTS = {"gpu": GPU, "cpu": CPU, "small": SMALL}

Skill = Callable[[int, int], float]


def falling(first: float, step: float) -> Skill:
    return lambda position, distance: first - step * distance


def changing(before: Skill, after: Skill) -> Skill:
    return lambda n, distance: (before if n < LENGTH // 2 else after)(n, distance)


GOOD, FAIR, POOR = falling(0.97, 0.005), falling(0.85, 0.04), falling(0.5, 0.05)
NONE = falling(0.02, 0.0)
SKILLS = {
    "good": GOOD,
    "fair": FAIR,
    "poor": POOR,
    "none": NONE,
    "good, then none": changing(GOOD, NONE),
    "none, then good": changing(NONE, GOOD),
}


RECORDED: dict[str, list[tuple[int, int]]] = {
    name: [(int(pair[0]), int(pair[1])) for pair in text.split()]
    for name, text in json.loads(
        (Path(__file__).parents[1] / "data" / "acceptance_traces.json").read_text()
    ).items()
}
"""Of a trained model of 10 layers, behind every token of its replies to prompts of four kinds."""


def trace_of(name: str, sure: float = 0.8) -> Trace:
    if name in RECORDED:
        return [(0, 1), *RECORDED[name]]
    return make_trace(random.Random(name), LENGTH, BLOCK, SKILLS[name], sure)


@cache
def ms_of_fixed(skill: str, costs: str) -> dict[tuple[str, int], float]:
    """The least that each policy takes with each of its blocks."""
    sizes = range(2, BLOCK + 1)
    policies: list[Policy] = [AutoRegressive(), *map(SpeculativeOnly, sizes)]
    policies += [ConfidenceOnly(size, TAU) for size in sizes]
    policies += [Hybrid(size, TAU, m) for size in (2, 4, 8) for m in (1, 2, 4, 8) if m <= size]
    found: dict[tuple[str, int], float] = {}
    for policy in policies:
        ms = ms_a_token(policy, trace_of(skill), COSTS[costs], STATES)
        key = policy.name, policy.max_drafts
        found[key] = min(ms, found.get(key, ms))
    return found


def make(name: str) -> BlockPolicy:
    if name == "speculative":
        return SpeculativeOnly(BLOCK)
    return ConfidenceOnly(BLOCK, TAU) if name == "confidence" else Hybrid(BLOCK, TAU, 2)


def ms_of_auto(policy: str, skill: str, costs: str) -> float:
    table = COSTS[costs]
    return ms_a_token(auto(make(policy), table), trace_of(skill), table, STATES)


def loss(policy: str, skill: str, costs: str) -> float:
    """What auto takes over the best fixed choice of its policy and AR; hybrid's, of all."""
    rivals = {"ar", policy} if policy != "hybrid" else {"ar", "speculative", "confidence", policy}
    best = min(ms for (name, _), ms in ms_of_fixed(skill, costs).items() if name in rivals)
    return ms_of_auto(policy, skill, costs) / best - 1


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("skill", SKILLS)
@pytest.mark.parametrize("policy", ["speculative", "confidence", "hybrid"])
def test_within_three_percent_of_the_best_fixed_choice(policy: str, skill: str, costs: str) -> None:
    assert loss(policy, skill, costs) <= 0.03


@pytest.mark.parametrize(
    ("policy", "mean", "most"),
    [("speculative", 0.015, 0.03), ("confidence", 0.015, 0.03), ("hybrid", 0.015, 0.03)],
)
def test_near_the_best_fixed_choice_on_recorded_traces(
    policy: str, mean: float, most: float
) -> None:
    """Learning included. The best of 24 choices, some a percent apart, is best by hindsight."""
    losses = {(name, costs): loss(policy, name, costs) for name in RECORDED for costs in COSTS}
    assert sum(losses.values()) / len(losses) <= mean, losses
    assert max(losses.values()) <= most, losses


def test_a_text_that_turns_predictable_is_noticed() -> None:
    """Of the second half, more is decoded in blocks than not."""
    trace = trace_of("none, then good")
    adaptive = auto(SpeculativeOnly(BLOCK), CPU)
    decoder = Decoder(TraceEngine(trace, CPU, 4096), STATES, adaptive)
    decoder.prefill([1])
    first = sum(it.drafted > 0 for it in decoder.iterations(LENGTH // 2))
    blocks = sum(len(it.tokens) for it in decoder.iterations(LENGTH) if it.drafted)
    assert first < 0.1 * LENGTH / 2
    assert blocks > 0.5 * LENGTH / 2


@pytest.mark.parametrize("policy", ["speculative", "confidence", "hybrid"])
def test_where_no_block_can_pay_none_is_tried(policy: str) -> None:
    adaptive = auto(make(policy), HOPELESS)
    ms_a_token(adaptive, trace_of("good"), HOPELESS, STATES)
    assert set(adaptive.chosen) == {AR}


def test_tries_cost_little() -> None:
    """Drafts that are never worth it: some are tried, for 1.5 % at most once that is known."""
    for table in (CPU, SMALL):
        trace = trace_of("none")
        ar = ms_a_token(AutoRegressive(), trace, table, STATES)
        adaptive = auto(Hybrid(BLOCK, TAU, 2), table)
        ms_a_token(adaptive, trace[:128], table, STATES)
        assert ms_a_token(adaptive, trace, table, STATES) < 1.015 * ar
        assert sum(adaptive.chosen.values()) - adaptive.chosen[AR] > 5


@pytest.mark.parametrize("policy", ["speculative", "confidence", "hybrid"])
def test_a_short_reply_learns_what_it_is_in_a_few_iterations(policy: str) -> None:
    """Of 128 tokens, the first of all, on average over what may come and what steps may cost."""
    losses = []
    for skill in ("good", "fair", "poor", "none"):
        for table in COSTS.values():
            trace = trace_of(skill)[:128]
            fixed = [AutoRegressive(), make(policy)]
            best = min(ms_a_token(each, trace, table, STATES) for each in fixed)
            losses.append(ms_a_token(auto(make(policy), table), trace, table, STATES) / best)
    assert sum(losses) / len(losses) < 1.05


class CountsSearches(Adaptive):
    searches = 0

    def _search(self, decoder: Decoder) -> None:
        self.searches += 1
        super()._search(decoder)


@pytest.mark.parametrize("skill", ["good", "none"])
@pytest.mark.parametrize(
    "table", [HOPELESS, SMALL, CPU, GPU], ids=["hopeless", "small", "cpu", "gpu"]
)
def test_searches_get_rare(table: CostTable, skill: str) -> None:
    """Fewer than one in ten AR steps."""
    adaptive = CountsSearches(SpeculativeOnly(BLOCK), table, clock=clock)
    ms = ms_a_token(adaptive, trace_of(skill), table, STATES) * LENGTH
    assert 0 < adaptive.searches < 0.1 * ms / table.ar_ms


def test_what_is_learnt_outlives_a_reply() -> None:
    trace = trace_of("none")
    adaptive = auto(SpeculativeOnly(BLOCK), CPU)
    ms_a_token(adaptive, trace[:200], CPU, STATES)
    before = adaptive.chosen[AR]
    ms_a_token(adaptive, trace[:100], CPU, STATES)
    assert adaptive.chosen[AR] - before >= 93


@pytest.mark.parametrize("objective", ["speed", "energy"])
@pytest.mark.parametrize("final", [True, False])
def test_the_text_is_ars_whatever_is_chosen(final: bool, objective: str) -> None:
    changes = 0
    for seed in range(40):
        draw = random.Random(seed)
        widths = (1, 2, 3, 5, 9) if final else (1, 2, 3, 5, 9, 12)
        states = final_states(
            draft_widths=tuple(range(1, 9)),
            verify_widths=widths,
            draft_rows_final=final,
            block_attention=draw.choice(("causal", "full")),
        )
        slope = draw.choice((0.0, 0.05, 0.5))
        whole = states.with_draft_outputs(4)
        table = cost_table(whole, lambda width, by=slope: 1 + by * width)
        engine = HashEngine(states, noise=draw.choice((0, 1, 4, 16)))
        by_width = {w: draw.uniform(5, 8) for state in states.all() for w in [state.width]}
        power = power_table(whole, by_width.__getitem__) if objective == "energy" else None
        adaptive = auto(SpeculativeOnly(4), table, power=power)
        decoder = Decoder(engine, states, adaptive, check=True)
        for _ in range(2):
            prompt = [draw.randrange(engine.vocab) for _ in range(draw.randint(1, 8))]
            decoder.prefill(prompt)
            drafted = [each.drafted for each in decoder.iterations(60)]
            changes += sum(one != other for one, other in pairwise(drafted[:-1]))
            assert decoder.prefix.tokens == prompt + engine.reply(prompt, 60 - len(prompt))
    assert changes > 20


def test_hybrid_commits_unverified_only_what_is_confident() -> None:
    drafting = 0
    for seed in range(40):
        states = final_states(draft_widths=tuple(range(1, 9)))
        table = cost_table(states.with_draft_outputs(4), lambda width: 1 + 0.01 * width)
        engine = HashEngine(states, noise=seed % 5)
        adaptive = auto(Hybrid(4, 0.5, 2), table)
        decoder = Decoder(engine, states, adaptive, check=True)
        decoder.prefill([seed % 11, 1])
        for step in decoder.iterations(60):
            drafting += step.drafted > 0
            if not step.verified:
                assert step.accepted == max(step.confident or 0, 1)
                assert len(step.tokens) == step.accepted
    assert drafting > 200


def chosen_by(policy: BlockPolicy, any_prefix: bool) -> set[Choice]:
    adaptive = auto(policy, GPU, any_prefix=any_prefix)
    ms_a_token(adaptive, trace_of("fair"), GPU, STATES)
    return set(adaptive.chosen)


def test_a_min_prefix_that_is_given_holds() -> None:
    chosen = chosen_by(Hybrid(BLOCK, TAU, 3), any_prefix=False) - {AR}
    assert chosen and all(least == min(3, block) for block, least in chosen)
    assert {least for _, least in chosen_by(Hybrid(BLOCK, TAU, 3), any_prefix=True)} - {0, 3, 9}


def test_masks_that_see_each_other_both_ways_keep_their_block() -> None:
    states = final_states(block_attention="full")
    table = cost_table(states.with_draft_outputs(4), lambda width: 1 + 0.01 * width)
    adaptive = auto(SpeculativeOnly(4), table)
    decoder = Decoder(HashEngine(states, noise=2), states, adaptive, check=True)
    decoder.prefill([1, 2])
    list(decoder.iterations(64))
    assert {choice.block for choice in adaptive.chosen} <= {0, 4}
    assert adaptive.chosen[Choice(4, 5)] > 0


def test_settings_tell_what_was_chosen() -> None:
    adaptive = auto(Hybrid(BLOCK, TAU, 2), GPU)
    engine = TraceEngine(trace_of("fair"), GPU, 4096)
    decoder = Decoder(engine, STATES, adaptive)
    decoder.prefill([1])
    steps: list[Iteration] = list(decoder.iterations(300))
    settings = json.loads(json.dumps(adaptive.settings))
    assert (settings["block"], settings["tau"], settings["min_prefix"]) == ("auto", TAU, "auto")
    assert sum(choice["iterations"] for choice in settings["chosen"]) == len(steps)
    assert settings["chosen"][0].keys() == {"block", "min_prefix", "iterations", "share"}
    assert sum(choice["share"] for choice in settings["chosen"]) == pytest.approx(1)
    assert (settings["objective"], settings["power_source"]) == ("speed", None)
    ar, *blocks = settings["costs"]
    assert ar == {"block": 0, "draft_ms": None, "verify_ms": pytest.approx(1.03)}
    assert [entry["block"] for entry in blocks] == [2, 4, 8]
    assert blocks[-1]["draft_ms"] == pytest.approx(1.08 + 8 * 0.02)
    assert blocks[-1]["verify_ms"] == pytest.approx(1.09 + 9 * 0.02)
    assert auto(Hybrid(8, TAU, 2), GPU, any_prefix=False).settings["min_prefix"] == 2
    assert auto(SpeculativeOnly(8), GPU).settings == {
        "block": "auto",
        "objective": "speed",
        "chosen": [],
        "costs": [],
        "power_source": None,
    }


def test_settings_tell_joules_where_they_are_what_is_saved() -> None:
    power = power_table(STATES, lambda width: 5.0 + width)
    adaptive = auto(SpeculativeOnly(BLOCK), GPU, power=power)
    adaptive.check(STATES)
    settings = adaptive.settings
    assert (settings["objective"], settings["power_source"]) == ("energy", "trace")
    ar, *_, block = settings["costs"]
    assert (ar["draft_mj"], ar["verify_mj"]) == (None, pytest.approx(1.03 * 6))
    assert block["draft_mj"] == pytest.approx(block["draft_ms"] * 13)
    assert block["verify_mj"] == pytest.approx(block["verify_ms"] * 14)


def test_all_verified_is_a_case_of_any_min_prefix() -> None:
    acceptance = Acceptance(BLOCK, judged=False)
    for right in (3, 0, 8, 5, 1):
        acceptance.see_right(BLOCK, 0, right)
    outlook = acceptance.outlook()
    prices = Prices.of(CPU, STATES, (2, BLOCK), 64)
    for block in (2, BLOCK):
        *_, last = rates(outlook, prices, block, block + 1)
        assert verified_rate(outlook, prices, block) == pytest.approx(last)


def test_it_samples_where_its_policy_does() -> None:
    states = final_states()
    table = cost_table(states.with_draft_outputs(4), lambda width: 1.0)
    warm = SamplingParams(0.7)
    Decoder(HashEngine(states), states, auto(SpeculativeOnly(4), table), sampling=warm)
    with pytest.raises(UserError, match="policy hybrid commits the most likely tokens"):
        adaptive = auto(Hybrid(4, TAU, 2), table)
        Decoder(HashEngine(states), states, adaptive, sampling=warm)


def test_the_dearer_a_verify_step_the_shorter_a_prefix_goes_unverified() -> None:
    policy = Hybrid(BLOCK, TAU, 2)
    found = []
    for verify in (0.1, 1.0, 3.0):
        table = cost_table(STATES, lambda width: 1 + 0.01 * width)
        steps = tuple(
            type(step)(
                step.role,
                step.width,
                step.outputs,
                step.short_ms * (verify if step.role == "verify" else 1),
                step.long_ms * (verify if step.role == "verify" else 1),
            )
            for step in table.steps
        )
        found.append(default_min_prefix(policy, type(table)(64, 512, steps), STATES))
    assert found == sorted(found, reverse=True) and found[0] > found[-1]
