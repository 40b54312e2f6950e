"""Outcomes that a benchmark dictates."""

from __future__ import annotations

import json
from itertools import cycle

import numpy as np
import pytest

from bitmtp_edge.decode.forced import ForcedOutcomes, Outcome, force_reject
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    ConfidenceOnly,
    Hybrid,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.sampling import SamplingParams
from bitmtp_edge.errors import UserError

from .fake_engines import HashEngine, MarkovEngine
from .test_sampling import chances_of_replies, deviation, random_pair

POLICIES = (
    SpeculativeOnly(4),
    ConfidenceOnly(4, 0.01),
    Hybrid(4, 0.01, 1),
    NestedSelfSpeculation(3),
    AutoRegressive(),
)


def states_for(final: bool) -> ReplayStates:
    return ReplayStates(
        (16, 128),
        tuple(range(1, 8)),
        (1, 2, 3, 5, 9),
        8,
        128,
        draft_rows_final=final,
        mask_embeddings=1,
    )


@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_rejected_drafts_leave_ars_text(policy: Policy, final: bool) -> None:
    """Perfect drafts, of which none is taken: a token an iteration, each verified."""
    final = final and policy.name != "nested"
    engine = HashEngine(states_for(final), noise=0)
    decoder = Decoder(engine, engine.states, force_reject(policy), check=True)
    decoder.prefill([1, 2, 3])
    steps = list(decoder.iterations(43))
    assert decoder.prefix.tokens == [1, 2, 3, *engine.reply([1, 2, 3], 40)]
    assert len(steps) == 40
    assert all(step.verified and step.accepted == 0 and step.confident == 0 for step in steps)
    assert [step.drafted for step in steps[:30]] == [policy.max_drafts] * 30
    assert decoder.steps["verify"] >= 40


TRACE = (Outcome(3, 0, False), Outcome(1, 2, True), Outcome(4, 0, False), Outcome(0, 0, True))


@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("noise", [0, 16])
def test_a_trace_decides_whatever_the_model_says(final: bool, noise: int) -> None:
    engine = HashEngine(states_for(final), noise=noise)
    decoder = Decoder(engine, engine.states, ForcedOutcomes(Hybrid(4, 0.9, 2), TRACE), check=True)
    for prompt in ([1, 2, 3], [5]):  # each reply begins with the first outcome
        decoder.prefill(prompt)
        for step, outcome in zip(decoder.iterations(100), cycle(TRACE), strict=False):
            if step.forced_end:
                break
            assert step.confident == outcome.confident
            if not final and not outcome.verified and step.verified:
                continue  # the widest verify window had no room for more
            assert step.verified == outcome.verified
            taken = outcome.accepted if outcome.verified else outcome.confident
            assert step.accepted == taken
            assert len(step.tokens) == taken + step.verified
        decoder.prefix.check()


def test_an_outcome_takes_no_more_drafts_than_there_are() -> None:
    engine = HashEngine(states_for(True))
    outcomes = (Outcome(9, 9, True), Outcome(9, 0, False))
    decoder = Decoder(engine, engine.states, ForcedOutcomes(SpeculativeOnly(4), outcomes))
    decoder.prefill([1])
    lengths = [len(step.tokens) for step in decoder.iterations(16)]
    assert lengths[:3] == [5, 4, 5] and sum(lengths) == 15


def test_every_row_is_where_a_forced_sequence_says() -> None:
    """What AR goes on with is what it would say after these tokens: no row is misplaced."""
    engine = HashEngine(states_for(True))
    decoder = Decoder(engine, engine.states, ForcedOutcomes(Hybrid(4, 0.9, 2), TRACE), check=True)
    decoder.prefill([1, 2, 3])
    list(decoder.iterations(60))
    tokens = list(decoder.prefix.tokens)
    decoder.policy = AutoRegressive()
    list(decoder.iterations(90))
    assert decoder.prefix.tokens == tokens + engine.reply(tokens, 30)


def test_rejected_drafts_leave_ars_distribution() -> None:
    tables, params = random_pair(), SamplingParams(1.0, seed=3)
    engine = MarkovEngine(states_for(False), *tables)
    decoder = Decoder(engine, engine.states, force_reject(SpeculativeOnly(3)), sampling=params)
    decoder.prefill([0])
    counts = np.zeros(16)
    for _ in range(1000):
        first, second = (step.tokens[0] for step in decoder.iterations(3))
        counts[4 * first + second] += 1
        decoder.truncate(1)
    assert deviation(counts, chances_of_replies(tables[0], params, 2)) < 4


def test_settings_say_that_outcomes_are_forced() -> None:
    policy = ForcedOutcomes(Hybrid(4, 0.9, 2), TRACE, "four")
    assert policy.name == "hybrid"
    assert json.loads(json.dumps(policy.settings)) == {
        "block": 4,
        "tau": 0.9,
        "min_prefix": 2,
        "trace": "four",
        "forced_outcomes": 4,
    }


@pytest.mark.parametrize(
    ("policy", "outcomes", "words"),
    [
        (SpeculativeOnly(4), (), "there are no forced outcomes"),
        (SpeculativeOnly(4), (Outcome(0, -1, True),), r"forced outcome 0 is \(0, -1, True\)"),
        (SpeculativeOnly(4), (TRACE[0], Outcome(0, 3, False)), "forced outcome 1 is "),
        (AutoRegressive(), (Outcome(1, 0, False),), "policy ar has none"),
    ],
)
def test_outcomes_that_no_iteration_has(
    policy: Policy, outcomes: tuple[Outcome, ...], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        ForcedOutcomes(policy, outcomes)
