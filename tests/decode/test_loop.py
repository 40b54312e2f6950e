"""What the loop commits, where it ends, and what it refuses."""

from __future__ import annotations

import pytest

from bitmtp_edge.decode.loop import Decoder, Iteration
from bitmtp_edge.decode.policies import AutoRegressive, Hybrid, NestedSelfSpeculation
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.errors import UserError

from .fake_engines import HashEngine, ScriptedEngine
from .overhead import seconds_per_step

GAMMA = 6


def states_for(gamma: int, context: int) -> ReplayStates:
    return ReplayStates((16, context), (1,), (1, gamma + 1), 8, context)


@pytest.mark.parametrize("accepted", range(GAMMA + 1))
def test_200_rounds_of_every_accepted_length(accepted: int) -> None:
    rounds = 200
    states = states_for(GAMMA, 2048)
    engine = ScriptedEngine(states, [accepted] * rounds)
    decoder = Decoder(engine, states, NestedSelfSpeculation(GAMMA))
    decoder.prefill([0])
    limit = 1 + rounds * (accepted + 1) + GAMMA
    iterations = decoder.iterations(limit)
    for index in range(rounds):
        at = 1 + index * (accepted + 1)
        expected = [engine.token_at(at + offset) for offset in range(accepted + 1)]
        assert next(iterations) == Iteration(expected, GAMMA, None, accepted, True, False)
    assert decoder.steps == {"draft": rounds * GAMMA, "verify": rounds}
    assert decoder.prefix.verified == rounds * (accepted + 1)


def test_accepted_lengths_in_any_order() -> None:
    script = [0, 6, 1, 5, 2, 4, 3, 3, 6, 0] * 20
    states = states_for(GAMMA, 2048)
    decoder = Decoder(ScriptedEngine(states, script), states, NestedSelfSpeculation(GAMMA))
    decoder.prefill([0, 7, 4])
    iterations = decoder.iterations(2048)
    assert [next(iterations).accepted for _ in script] == script


@pytest.mark.parametrize(
    ("prompt", "limit", "drafted"),
    [
        (1, 2, [0]),  # one new token: an autoregressive step
        (1, 3, [1]),
        (1, 6, [4]),
        (1, 7, [4, 0]),
        (1, 9, [4, 2]),
        (30, 99, [1]),  # the context holds 32
        (31, 99, [0]),
    ],
)
def test_drafts_shrink_to_the_limit(prompt: int, limit: int, drafted: list[int]) -> None:
    states = ReplayStates((32,), (1,), (1, 5), 8, 32)
    engine = HashEngine(states, noise=0)
    decoder = Decoder(engine, states, NestedSelfSpeculation(4), check=True)
    tokens = [3] * prompt
    decoder.prefill(tokens)
    steps = list(decoder.iterations(limit))
    assert [step.drafted for step in steps] == drafted
    assert [step.forced_end for step in steps] == [count < 4 for count in drafted]
    end = min(limit, 32)
    assert decoder.prefix.tokens == tokens + engine.reply(tokens, end - prompt)


def test_prefill_covers_all_but_the_last_token_and_keeps_what_it_knows() -> None:
    states = ReplayStates((64,), (1,), (1, 5), 8, 64)
    engine = HashEngine(states)
    decoder = Decoder(engine, states, AutoRegressive(), check=True)
    seen: list[tuple[int, int]] = []
    assert decoder.prefill(list(range(22)), lambda *done: seen.append(done)) == 0
    assert seen == [(8, 21), (16, 21), (21, 21)]
    assert [(state.width, state.outputs) for state, _ in engine.replayed] == [
        (8, 1),
        (8, 1),
        (5, 1),
    ]
    reply = [token for step in decoder.iterations(30) for token in step.tokens]
    assert decoder.prefill([*range(22), *reply, 5, 6]) == 29
    assert decoder.prefill([*range(22), 9, 9, 9]) == 22 + (reply[0] == 9)
    assert decoder.prefill(list(range(22))) == 21
    assert decoder.prefill([1, 0]) == 0
    assert decoder.prefill([1]) == 0


def test_a_prompt_of_one_token_needs_no_prefill_step() -> None:
    states = ReplayStates((32,), (1,), (1,), 8, 32)
    engine = HashEngine(states)
    decoder = Decoder(engine, states, AutoRegressive())
    assert decoder.prefill([4]) == 0
    assert not engine.replayed
    assert next(decoder.iterations(2)).tokens == engine.reply([4], 1)


@pytest.mark.parametrize("length", [0, 32, 33])
def test_a_prompt_that_cannot_be_answered_is_refused_before_any_step(length: int) -> None:
    states = ReplayStates((32,), (1,), (1,), 8, 32)
    engine = HashEngine(states)
    decoder = Decoder(engine, states, AutoRegressive())
    decoder.prefill([1, 2])
    before = len(engine.replayed)
    with pytest.raises(UserError, match=r"^the prompt has (no|3[23]) tokens") as refused:
        decoder.prefill([1] * length)
    assert "\n" not in str(refused.value)
    assert len(engine.replayed) == before
    assert decoder.prefix.tokens == [1, 2]


def test_a_lower_context_holds_too() -> None:
    states = ReplayStates((32,), (1,), (1,), 8, 32)
    decoder = Decoder(HashEngine(states), states, AutoRegressive(), context=8)
    with pytest.raises(UserError, match="the context of 8"):
        decoder.prefill([1] * 8)
    decoder.prefill([1] * 5)
    assert len(list(decoder.iterations(100))) == 3


def test_settings_that_fit_no_state_are_refused() -> None:
    states = ReplayStates((32,), (), (1, 5), 8, 32)
    engine = HashEngine(states)
    with pytest.raises(UserError, match="no draft window"):
        Decoder(engine, states, NestedSelfSpeculation(4))
    wide = ReplayStates((32,), (1,), (1, 5), 8, 32)
    with pytest.raises(UserError, match=r"no verify window holds 6 tokens \(widths here: 1, 5\)"):
        Decoder(engine, wide, NestedSelfSpeculation(5))
    with pytest.raises(UserError, match="context is 33"):
        Decoder(engine, states, AutoRegressive(), context=33)
    with pytest.raises(UserError, match="gamma is 0"):
        NestedSelfSpeculation(0)
    with pytest.raises(UserError, match="recent_n is -1"):
        NestedSelfSpeculation(1, recent_n=-1)


def test_overhead_can_be_measured() -> None:
    for policy in (AutoRegressive(), NestedSelfSpeculation(4), Hybrid(4, 0.9, 2)):
        assert seconds_per_step(policy, tokens=50) > 0
