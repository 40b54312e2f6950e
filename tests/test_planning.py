"""planning: what fits, and rates from steps and outcomes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import islice

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.forced import ForcedOutcomes, Outcome
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import AutoRegressive, Hybrid, NestedSelfSpeculation, Policy
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import ReplayState, Role, StepOutput, Window
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.errors import UserError
from bitmtp_edge.footprint import footprint
from bitmtp_edge.planning import SHORT, cost, plan
from bitmtp_edge.profiles import Profile, load_profile

AR = AutoRegressive()
STATES = ReplayStates(
    segments=(512,),
    draft_widths=(1, 4, 5, 6, 7),
    verify_widths=(1, 2, 5, 9),
    prefill_chunk=9,
    context=512,
    draft_outputs=4,
    draft_rows_final=True,
    mask_embeddings=1,
)


@pytest.fixture
def board() -> Profile:
    return load_profile("orin-nx-8gb")


class Steps:
    """Seconds of a step: its width. Remembers what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Role, int, int]] = []

    def __call__(self, role: Role, width: int, outputs: int) -> float:
        self.asked.append((role, width, outputs))
        return float(width)


def hybrid(*outcomes: tuple[int, int, bool]) -> ForcedOutcomes:
    return ForcedOutcomes(Hybrid(4, 0.9, 2), tuple(Outcome(*each) for each in outcomes), "made up")


def test_cost_of_ar() -> None:
    steps = Steps()
    assert cost(AR, STATES, steps) == (1, 1, 1.0)
    assert steps.asked == [("verify", 1, 1)]


def test_cost_of_blocks_that_are_never_verified() -> None:
    """Each finds the tokens of the one before pending: 3 of them, and 3 masks."""
    steps = Steps()
    assert cost(hybrid((3, 0, False)), STATES, steps) == (3, 1, 6.0)
    assert steps.asked == [("draft", 6, 4)]


def test_cost_of_blocks_that_take_turns() -> None:
    """After a verify step one token is pending; the outcomes come round."""
    steps = Steps()
    tokens, iterations, seconds = cost(hybrid((0, 2, True), (4, 0, False)), STATES, steps)
    assert (tokens, iterations) == (3 + 4, 2)
    assert steps.asked == [("draft", 7, 4), ("verify", 5, 5), ("draft", 4, 4)]
    assert seconds == 7 + 5 + 4


def test_rows_that_are_not_final_are_verified_again() -> None:
    steps = Steps()
    states = replace(STATES, draft_rows_final=False)
    cost(hybrid((0, 2, True), (4, 0, False)), states, steps)
    assert steps.asked[1] == ("verify", 9, 9)


def test_cost_of_nested() -> None:
    steps = Steps()
    outcomes = (Outcome(0, 4, True), Outcome(0, 1, True))
    policy = ForcedOutcomes(NestedSelfSpeculation(4), outcomes, "made up")
    assert cost(policy, STATES, steps) == (5 + 2, 2, 2 * (4 * 1 + 5))
    assert set(steps.asked) == {("draft", 1, 1), ("verify", 5, 5)}


class Recording(CpuEngine):
    """steps: role, width and outputs of each, prefill's too."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle, threads=1)
        self.steps: list[tuple[Role, int, int]] = []

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        self.steps.append((state.role, state.width, state.outputs))
        return super().replay(state, window)


@pytest.mark.parametrize(
    ("fixture", "policy"),
    [
        ("tiny_ternary_bundle", hybrid((3, 0, False))),
        ("tiny_ternary_bundle", hybrid((0, 2, True), (4, 0, False), (2, 0, False))),
        ("tiny_bundle", ForcedOutcomes(NestedSelfSpeculation(2), (Outcome(0, 2, True),))),
        ("tiny_bundle", AR),
    ],
)
def test_its_steps_are_those_that_decoding_takes(
    fixture: str, policy: Policy, request: pytest.FixtureRequest
) -> None:
    """Of two turns of the outcomes the second: the first one starts with the prompt's end."""
    bundle: Bundle = request.getfixturevalue(fixture)
    states = ReplayStates.of(bundle).with_draft_outputs(policy.draft_outputs)
    asked = Steps()
    tokens, iterations, _ = cost(policy, states, asked)
    with Recording(bundle) as engine:
        decoder = Decoder(engine, states, policy)
        decoder.prefill(list(range(3, 12)))
        prefill = len(engine.steps)
        done = list(islice(decoder.iterations(200), 2 * iterations))
        taken = engine.steps[prefill:]
    assert taken[-len(asked.asked) :] == asked.asked
    assert sum(len(iteration.tokens) for iteration in done[iterations:]) == tokens


def test_a_plan(tiny_ternary_bundle: Bundle, board: Profile) -> None:
    found = plan(tiny_ternary_bundle, board, [AR, hybrid((3, 0, False))])
    states = ReplayStates.of(tiny_ternary_bundle)
    context = tiny_ternary_bundle.model.context
    assert found.fits and found.context == context == found.largest_context
    assert found.segment == states.segments[-1]
    assert found.footprint == footprint(tiny_ternary_bundle, states.all())
    assert found.available == board.available_mb << 20
    assert len(found.rates) == len(board.modes) * 2 * 2
    for rate in found.rates:
        assert rate.tokens_per_s < rate.at_most
        assert rate.history in (SHORT, context - 1)
        assert rate.tokens_per_iteration == (1 if rate.policy == "ar" else 3)
        assert rate.trace == (None if rate.policy == "ar" else "made up")
    told = json.loads(json.dumps(found.to_dict()))
    assert told["ok"] is True and told["bytes"]["total"] == found.footprint.total
    assert told["rates"][0] == asdict(found.rates[0])
    assert told["profile"]["name"] == "orin-nx-8gb" and told["assumptions"]


def test_a_context_and_a_power_mode(tiny_bundle: Bundle, board: Profile) -> None:
    found = plan(tiny_bundle, board, [AR], context=300, modes=[board.mode("15W")])
    assert found.segment == tiny_bundle.replay.segments[0] and found.footprint.kv_growth == 0
    assert [rate.mode for rate in found.rates] == ["15W", "15W"]
    assert [rate.history for rate in found.rates] == [SHORT, 299]


@pytest.mark.parametrize("context", [1, 0, -5, 1025])
def test_a_context_that_the_bundle_does_not_serve(
    tiny_bundle: Bundle, board: Profile, context: int
) -> None:
    with pytest.raises(UserError, match=r"--context is .*serves 2 to 1024 tokens"):
        plan(tiny_bundle, board, [AR], context=context)


def test_less_memory_takes_less_context_and_at_last_none(
    tiny_bundle: Bundle, board: Profile
) -> None:
    states = ReplayStates.of(tiny_bundle)
    small = [state for state in states.all() if state.segment == states.segments[0]]
    enough = -(-footprint(tiny_bundle, small).total >> 20)
    tight = plan(tiny_bundle, replace(board, available_mb=enough), [AR])
    assert tight.largest_context == states.segments[0] and not tight.fits
    # Rates are of what could run there, and of nothing where nothing could.
    assert {rate.history for rate in tight.rates} == {SHORT, states.segments[0] - 1}
    none = plan(tiny_bundle, replace(board, available_mb=enough - 1), [AR])
    assert none.largest_context is None and not none.fits and none.rates == ()
