"""Speculative decoding returns exactly the autoregressive tokens, whatever happens on the way."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    Hybrid,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import ReplayState, StagedStep, StagedWindow
from bitmtp_edge.errors import UserError

from .fake_engines import HashEngine, StagingEngine

SEGMENTS = (8, 16, 32, 64)


def random_states(draw: random.Random, gamma: int) -> ReplayStates:
    extra = draw.sample(range(1, 12), draw.randrange(3))
    return ReplayStates(
        SEGMENTS, (1,), (1, gamma + 1, *extra), draw.randint(1, 12), draw.randint(4, 64)
    )


def random_prompt(draw: random.Random, decoder: Decoder, vocab: int) -> list[int]:
    """A new prompt, or one that goes on from a part of the sequence there is."""
    longest = decoder.context - 1
    known = decoder.prefix.tokens
    kept = known[: draw.randint(0, len(known))] if draw.random() < 0.7 else []
    new = [draw.randrange(vocab) for _ in range(draw.randint(1, 12))]
    return (kept + new)[-longest:] if draw.random() < 0.1 else (kept[: longest - 1] + new)[:longest]


def interrupt_at(draw: random.Random, engine: HashEngine) -> Callable[[], None]:
    """Raises KeyboardInterrupt at some promoted row from now on, once."""
    countdown = draw.randrange(20)

    def tick() -> None:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            raise KeyboardInterrupt

    return tick


def play(
    seed: int,
    policy: Policy,
    states: ReplayStates,
    draw: random.Random,
    kind: type[HashEngine] = HashEngine,
) -> HashEngine:
    """A few turns on one decoder, each compared with the model's own reply."""
    engine = kind(states, noise=draw.choice((0, 2, 4, 16)))
    decoder = Decoder(engine, states, policy, check=seed % 50 == 0)
    for _ in range(draw.randint(1, 3)):
        prompt = random_prompt(draw, decoder, engine.vocab)
        limit = min(len(prompt) + draw.randint(1, 24), states.context)
        stop = draw.randrange(2 * engine.vocab)  # half of them no token at all
        engine.before_write = interrupt_at(draw, engine) if draw.random() < 0.2 else lambda: None
        expected = engine.reply(prompt, limit - len(prompt))
        got: list[int] = []
        stopped = interrupted = False
        try:
            decoder.prefill(prompt)
            for iteration in decoder.iterations(limit):
                got += iteration.tokens
                if stop in iteration.tokens:
                    stopped = True
                    break
        except KeyboardInterrupt:
            stopped = interrupted = True
        assert got == expected[: len(got)]
        assert stopped or len(got) == len(expected)
        if interrupted and draw.random() < 0.5:  # it can just go on
            list(decoder.iterations(limit))
            assert decoder.prefix.tokens == prompt + expected
            continue
        if got and stopped and draw.random() < 0.5:  # a reply may be cut anywhere
            got = got[: draw.randint(0, len(got))]
        if stopped or draw.random() < 0.5:
            decoder.truncate(len(prompt) + len(got))
            assert decoder.prefix.tokens == prompt + got
        decoder.prefix.check()
        if got and draw.random() < 0.3:  # so can a stopped or cut reply
            engine.before_write = lambda: None
            rest = [token for it in decoder.iterations(limit) for token in it.tokens]
            assert got + rest == expected
    return engine


@pytest.mark.parametrize("gamma", range(1, 9))
def test_nested_equals_autoregressive(gamma: int) -> None:
    for seed in range(400):
        draw = random.Random(1000 * gamma + seed)
        kv4 = draw.choice((None, 0, 16))
        policy = NestedSelfSpeculation(gamma, kv4_from_segment=kv4, recent_n=draw.choice((0, 5)))
        play(seed, policy, random_states(draw, gamma), draw)


def test_autoregressive_equals_the_model() -> None:
    for seed in range(300):
        draw = random.Random(seed)
        play(seed, AutoRegressive(), random_states(draw, 4), draw)


def test_steps_that_begin_before_their_token_is_read() -> None:
    """Stops, cuts, interrupts and growth, as ever; and all but a few steps of a reply are begun
    so."""
    ahead = replayed = 0
    for seed in range(300):
        draw = random.Random(seed)
        engine = play(seed, AutoRegressive(), random_states(draw, 4), draw, StagingEngine)
        assert isinstance(engine, StagingEngine)
        ahead += engine.staged
        replayed += len(engine.replayed)
    assert ahead > 0.6 * replayed  # the rest is prefill and firsts


def test_nothing_runs_ahead_of_the_limit() -> None:
    states = ReplayStates((8, 16, 64), (1,), (1, 5), 8, 64)
    engine = StagingEngine(states)
    decoder = Decoder(engine, states, AutoRegressive())
    decoder.prefill([1, 2, 3])
    engine.replayed.clear()
    assert [it.tokens for it in decoder.iterations(23)] == [
        [token] for token in engine.reply([1, 2, 3], 20)
    ]
    assert len(engine.replayed) == 20
    assert engine.staged == 17  # the first, and the firsts of two new buffers


@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_drafts_and_verify_steps_that_begin_before_their_tokens_are_read(gamma: int) -> None:
    """Likewise, whatever the drafts read of history."""
    ahead = replayed = 0
    for seed in range(300):
        draw = random.Random(1000 * gamma + seed)
        policy = NestedSelfSpeculation(gamma, draw.choice((None, 0, 16)), draw.choice((0, 5)))
        engine = play(seed, policy, random_states(draw, gamma), draw, StagingEngine)
        assert isinstance(engine, StagingEngine)
        ahead += engine.staged
        replayed += len(engine.replayed)
    assert ahead > 0.6 * replayed * gamma / (gamma + 1)  # of an iteration all but its first


@pytest.mark.parametrize(
    ("policy", "looks"),
    [
        (NestedSelfSpeculation(3), [("draft", 1)] * 3 + [("verify", 0)]),
        (NestedSelfSpeculation(1), [("draft", 1), ("verify", 0)]),
        (SpeculativeOnly(4), [("draft", 1), ("verify", 0)]),
        (Hybrid(4, 1e-9, 4), [("draft", 0)]),  # all drafts are confident
        (Hybrid(4, 1.0, 4), [("draft", 0), ("verify", 0)]),  # the verify step waits for them
    ],
    ids=lambda value: value.name if isinstance(value, Policy) else None,
)
def test_what_runs_while_an_output_is_read(policy: Policy, looks: list[tuple[str, int]]) -> None:
    states = ReplayStates((64,), (1, 4, 8), (1, 2, 4, 5, 10), 8, 64, mask_embeddings=1)
    engine = StagingEngine(states, noise=4)
    decoder = Decoder(engine, states, policy)
    decoder.prefill([3, 1, 4, 1, 5])
    engine.looks.clear()
    next(decoder.iterations(60))
    assert engine.looks == looks


@pytest.mark.parametrize(
    "policy", [NestedSelfSpeculation(3), SpeculativeOnly(4), Hybrid(4, 0.5, 2)]
)
def test_an_iteration_begins_before_the_one_before_is_given(policy: Policy) -> None:
    """Where a step need not be waited for. One that nobody asks for is not counted."""
    for kind, ahead in ((StagingEngine, 1), (HashEngine, 0)):
        states = ReplayStates((64,), (1, 4, 8), (1, 4, 5, 10), 8, 64, mask_embeddings=1)
        engine = kind(states)
        decoder = Decoder(engine, states, policy)
        decoder.prefill([3, 1, 4, 1, 5])
        begun = len(engine.replayed) - sum(decoder.steps.values())
        iterations = decoder.iterations(40)
        next(iterations)
        assert len(engine.replayed) - sum(decoder.steps.values()) == begun
        assert (engine.replayed[-1][0].role == "draft") is bool(ahead)
        decoder.truncate(len(decoder.prefix.tokens))
        assert len(engine.replayed) - sum(decoder.steps.values()) == begun + ahead
        for _ in iterations:
            pass
        assert len(engine.replayed) - sum(decoder.steps.values()) == begun + ahead


def test_nothing_begins_in_a_buffer_that_is_to_grow() -> None:
    """Growth may fail, and the reply may have ended: what was decoded is given first."""

    class Full(StagingEngine):
        def grow(self, segment: int, rows: int) -> None:
            if segment > 16:
                raise UserError("no memory")
            super().grow(segment, rows)

    states = ReplayStates((8, 16, 64), (1,), (1, 4), 8, 64)
    for policy in (NestedSelfSpeculation(3), AutoRegressive()):
        engine = Full(states, noise=0)
        decoder = Decoder(engine, states, policy)
        decoder.prefill([1, 2])
        got: list[int] = []
        with pytest.raises(UserError, match="no memory"):
            for iteration in decoder.iterations(60):
                got += iteration.tokens
        assert decoder.prefix.tokens == [1, 2, *got]
        assert len(got) > 10
        assert engine.grown[-1][0] == 16


def test_an_engine_that_does_not_stage_is_not_asked_to() -> None:
    class Host(StagingEngine):
        stages = False

        def stage(self, state: ReplayState, window: StagedWindow) -> StagedStep:
            raise AssertionError("asked")

    states = ReplayStates((64,), (1,), (1, 4), 8, 64)
    for policy in (NestedSelfSpeculation(3), AutoRegressive()):
        engine = Host(states)
        decoder = Decoder(engine, states, policy)
        decoder.prefill([1, 2])
        tokens = [token for it in decoder.iterations(60) for token in it.tokens]
        assert tokens == engine.reply([1, 2], 58)


def test_two_limits_on_one_sequence() -> None:
    """What began for one limit is not for the other."""
    states = ReplayStates((64,), (1,), (1, 5), 8, 64)
    engine = StagingEngine(states, noise=0)
    decoder = Decoder(engine, states, NestedSelfSpeculation(4))
    decoder.prefill([1, 2, 3])
    near, far = decoder.iterations(15), decoder.iterations(40)
    next(near)
    next(far)
    for _ in near:
        pass
    assert decoder.prefix.tokens == [1, 2, 3, *engine.reply([1, 2, 3], 12)]


def test_policies_take_turns_on_one_sequence() -> None:
    states = ReplayStates(SEGMENTS, (1,), (1, 3, 6), 8, 64)
    engine = HashEngine(states)
    decoder = Decoder(engine, states, AutoRegressive())
    prompt = [3, 1, 4, 1, 5]
    decoder.prefill(prompt)
    for length, policy in ((20, NestedSelfSpeculation(5)), (30, AutoRegressive()), (60, None)):
        decoder.policy = policy or NestedSelfSpeculation(2)
        list(decoder.iterations(length))
    assert decoder.prefix.tokens == prompt + engine.reply(prompt, 55)


def test_policies_take_turns_inside_one_reply() -> None:
    """A step that was begun ahead is not another policy's."""
    states = ReplayStates(SEGMENTS, (1,), (1, 3, 6), 8, 64)
    for seed in range(40):
        draw = random.Random(seed)
        engine = StagingEngine(states, noise=draw.choice((0, 4, 16)))
        decoder = Decoder(engine, states, AutoRegressive())
        prompt = [3, 1, 4, 1, 5]
        decoder.prefill(prompt)
        for _ in decoder.iterations(60):
            decoder.policy = draw.choice((AutoRegressive(), NestedSelfSpeculation(2)))
        assert decoder.prefix.tokens == prompt + engine.reply(prompt, 55)


def test_a_reply_that_goes_on_behind_another_prompt() -> None:
    states = ReplayStates(SEGMENTS, (1,), (1, 3, 6), 8, 64)
    engine = StagingEngine(states)
    decoder = Decoder(engine, states, AutoRegressive())
    decoder.prefill([3, 1, 4, 1, 5])
    iterations = decoder.iterations(60)
    next(iterations)
    other = [7, 7, 2, 2, 1, decoder.prefix.tokens[-1]]
    decoder.prefill(other)
    for _ in iterations:
        pass
    assert decoder.prefix.tokens == other + engine.reply(other, 54)


def test_drafts_see_tentative_rows_and_the_verifier_does_not() -> None:
    """With a perfect draft every iteration commits gamma + 1 tokens, in windows at ``verified``."""
    states = ReplayStates((64,), (1,), (1, 5), 8, 64)
    engine = HashEngine(states, noise=0)
    decoder = Decoder(engine, states, NestedSelfSpeculation(4), check=True)
    decoder.prefill([1, 2, 3])
    engine.replayed.clear()
    assert [it.accepted for it in decoder.iterations(13)] == [4, 4]
    starts = [(state.role, window.history_length) for state, window in engine.replayed]
    assert starts[:5] == [("draft", 2), ("draft", 3), ("draft", 4), ("draft", 5), ("verify", 2)]
    assert starts[5:] == [("draft", 7), ("draft", 8), ("draft", 9), ("draft", 10), ("verify", 7)]


def test_growth_copies_history_once_and_never_inside_an_iteration() -> None:
    states = ReplayStates((8, 16, 32), (1,), (1, 4), 4, 32)
    engine = HashEngine(states)
    decoder = Decoder(engine, states, NestedSelfSpeculation(3))
    decoder.prefill([1, 2])
    verified = decoder.prefix.verified
    grown: list[int] = []
    for _ in decoder.iterations(32):
        # Had a step needed the room, there would be draft rows to copy as well.
        assert [rows for _, rows in engine.grown] in (grown, [*grown, verified])
        grown = [rows for _, rows in engine.grown]
        verified = decoder.prefix.verified
    assert [segment for segment, _ in engine.grown] == [16, 32]


@pytest.mark.parametrize(
    ("segment", "recent", "expected"),
    [(8, 0, [0, 0]), (16, 0, [8, 9]), (16, 3, [5, 6]), (16, 100, [0, 0])],
)
@pytest.mark.parametrize("kind", [HashEngine, StagingEngine])
def test_kv4_drafting_depends_on_the_segment(
    segment: int, recent: int, expected: list[int], kind: type[HashEngine]
) -> None:
    states = ReplayStates((8, 16), (1,), (1, 3), 4, 16)
    engine = kind(states, segment=16 if segment == 16 else 8)
    policy = NestedSelfSpeculation(2, kv4_from_segment=16, recent_n=recent)
    decoder = Decoder(engine, states, policy)
    prompt = list(range(9)) if segment == 16 else [1, 2, 3]
    decoder.prefill(prompt)
    engine.replayed.clear()
    next(decoder.iterations(16))
    lengths = [(state.role, window.kv4_length) for state, window in engine.replayed[:3]]
    assert lengths == [("draft", expected[0]), ("draft", expected[1]), ("verify", 0)]
