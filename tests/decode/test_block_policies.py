"""Multi-token drafting commits what its policies say, whatever happens on the way."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from bitmtp_edge.decode.forced import force_reject
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    BlockPolicy,
    ConfidenceOnly,
    Hybrid,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.sampling import Drafts, SamplingParams
from bitmtp_edge.engines.base import visible_slots
from bitmtp_edge.errors import UserError

from .fake_engines import HashEngine, StagingEngine
from .oracle import Model, Oracle
from .test_lossless_loop import SEGMENTS, interrupt_at, play, random_prompt

TAUS = (0.3, 0.5, 0.85, 1.0)


def random_states(draw: random.Random, block: int, final: bool, full: bool) -> ReplayStates:
    """Every width of the paper, or too few for all pending tokens; verify windows of several."""
    widest = draw.choice((2 * block - 1, draw.randint(block, 2 * block - 1)))
    extra = [draw.randint(1, 4 * block) for _ in range(draw.randrange(3))]
    chunk = draw.randint(1, 12)
    if not final:
        extra.append(2 * block + draw.randrange(2))
    return ReplayStates(
        SEGMENTS,
        tuple(range(1, widest + 1)),
        (1, block + 1, *extra),
        chunk,
        draw.randint(4, 64),
        draft_rows_final=final,
        mask_embeddings=draw.choice((1, block - 1, block + 2)),
        block_attention="full" if full else "causal",
    )


def random_policy(draw: random.Random, name: str, block: int) -> BlockPolicy:
    if name == "speculative":
        return SpeculativeOnly(block)
    if name == "confidence":
        return ConfidenceOnly(block, draw.choice(TAUS))
    return Hybrid(block, draw.choice(TAUS), draw.randint(1, block))


def oracle_of(policy: BlockPolicy, engine: HashEngine, tokens: list[int]) -> Oracle:
    states = engine.states
    model = Model(
        engine.vocab,
        engine.noise,
        states.draft_rows_final,
        states.full_blocks,
        states.mask_embeddings,
        states.draft_widths[-1],
        states.verify_widths[-1],
    )
    tau = policy.tau if isinstance(policy, ConfidenceOnly) else None
    least = policy.min_prefix if isinstance(policy, Hybrid) else 0
    return Oracle(model, policy.block, tau, least, list(tokens))


def play_policy(policy: BlockPolicy, states: ReplayStates, draw: random.Random, check: bool) -> int:
    """Turns that stop, are cut, interrupted and gone on with, each iteration held to the oracle's.

    Returns how many iterations were compared.
    """
    kind = draw.choice((HashEngine, StagingEngine))
    engine = kind(states, noise=draw.choice((0, 1, 2, 4, 16)))
    decoder = Decoder(engine, states, policy, check=check)
    compared = 0
    for _ in range(draw.randint(1, 3)):
        prompt = random_prompt(draw, decoder, engine.vocab)
        limit = min(len(prompt) + draw.randint(1, 30), states.context)
        engine.before_write = interrupt_at(draw, engine) if draw.random() < 0.2 else lambda: None
        try:
            decoder.prefill(prompt)
        except KeyboardInterrupt:
            decoder.prefill(prompt)
        for _ in range(draw.randint(1, 4)):  # each time, it goes on from what there is
            oracle = oracle_of(policy, engine, decoder.prefix.tokens)
            expected = oracle.iterations(limit)
            stop_after = draw.randint(1, 12)
            try:
                for iteration in decoder.iterations(limit):
                    assert iteration == next(expected)
                    compared += 1
                    stop_after -= 1
                    if stop_after == 0:
                        break
                else:
                    assert next(expected, None) is None
            except KeyboardInterrupt:
                engine.before_write = lambda: None
            length = len(decoder.prefix.tokens)
            if draw.random() < 0.5:
                decoder.truncate(draw.randint(len(prompt), length))
                decoder.prefix.check()
    return compared


@pytest.mark.parametrize("attention", ["causal", "full"])
@pytest.mark.parametrize("rows", ["final", "tentative"])
@pytest.mark.parametrize("name", ["speculative", "confidence", "hybrid"])
def test_every_iteration_is_the_oracles(name: str, rows: str, attention: str) -> None:
    compared = 0
    for seed in range(120):
        draw = random.Random(f"{name} {rows} {attention} {seed}")
        block = draw.randint(2, 8)
        states = random_states(draw, block, rows == "final", attention == "full")
        policy = random_policy(draw, name, block)
        compared += play_policy(policy, states, draw, check=seed % 20 == 0)
    assert compared > 800


@pytest.mark.parametrize("block", range(2, 9))
def test_lossless_policies_equal_autoregressive(block: int) -> None:
    for seed in range(60):
        draw = random.Random(1000 * block + seed)
        states = random_states(draw, block, draw.random() < 0.5, draw.random() < 0.5)
        policies: tuple[Policy, ...] = (
            SpeculativeOnly(block),
            force_reject(random_policy(draw, draw.choice(("confidence", "hybrid")), block)),
            force_reject(SpeculativeOnly(block)),
        )
        play(seed, draw.choice(policies), states, draw, draw.choice((HashEngine, StagingEngine)))


def final_states(**changes: object) -> ReplayStates:
    settings = {
        "segments": (64,),
        "draft_widths": tuple(range(1, 8)),
        "verify_widths": (1, 2, 3, 5, 9),
        "prefill_chunk": 8,
        "context": 64,
        "draft_rows_final": True,
        "mask_embeddings": 1,
    }
    return ReplayStates(**(settings | changes))  # type: ignore[arg-type]


def steps_of(engine: HashEngine) -> list[tuple[str, int, int, int]]:
    """Role, width, outputs and history of every step, since the last call."""
    found = [(s.role, s.width, s.outputs, w.history_length) for s, w in engine.replayed]
    engine.replayed.clear()
    return found


def test_the_pending_suffix_widens_the_next_draft_window() -> None:
    """Right and confident drafts: 4 pending tokens and 3 masks from the second iteration on."""
    states = final_states()
    engine = HashEngine(states, noise=0)
    decoder = Decoder(engine, states, ConfidenceOnly(4, 0.01), check=True)
    decoder.prefill([1, 2, 3])
    engine.replayed.clear()
    length, pending = 3, 1
    widths = set()
    for iteration in decoder.iterations(60):
        count = min(4, 60 - length - 1)
        rows = pending + count - 1
        widths.add(rows)
        if count:
            assert steps_of(engine) == [("draft", rows, min(rows, 4), length - pending)]
            assert not iteration.verified
            assert decoder.prefix.pending == iteration.tokens
        pending = len(iteration.tokens)
        length += pending
    assert {4, 7} <= widths


def test_a_verify_step_of_final_rows_starts_at_the_anchor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = final_states()
    engine = HashEngine(states, noise=0)
    decoder = Decoder(engine, states, SpeculativeOnly(4), check=True)
    decoder.prefill([1, 2, 3])
    engine.replayed.clear()
    promoted: list[tuple[list[int], int]] = []
    promote = engine.promote

    def noted(rows: Sequence[int], at: int) -> None:
        promoted.append((list(rows), at))
        promote(rows, at)

    monkeypatch.setattr(engine, "promote", noted)
    first = next(decoder.iterations(20))
    assert (first.accepted, first.verified, first.confident) == (4, True, None)
    assert steps_of(engine) == [("draft", 4, 4, 2), ("verify", 5, 5, 2)]
    assert promoted == [([0], 2), ([1, 2, 3, 4], 3)]


def test_a_verify_step_of_tentative_rows_replaces_them() -> None:
    states = final_states(draft_rows_final=False, verify_widths=(1, 5, 12))
    engine = HashEngine(states, noise=0)
    decoder = Decoder(engine, states, ConfidenceOnly(4, 0.01), check=True)
    decoder.prefill([1, 2, 3])
    engine.replayed.clear()
    verified = 2
    seen = []
    for iteration in decoder.iterations(40):
        steps = steps_of(engine)
        seen.append(iteration.verified)
        if iteration.verified:
            assert steps[-1][0] == "verify" and steps[-1][3] == verified
            verified = decoder.prefix.verified
        assert decoder.prefix.verified == verified
    assert True in seen and False in seen


def test_more_pending_tokens_than_a_draft_width_takes_are_prefilled() -> None:
    states = final_states(draft_widths=(1, 2, 3, 4))
    engine = HashEngine(states, noise=0)
    decoder = Decoder(engine, states, ConfidenceOnly(4, 0.01), check=True)
    decoder.prefill([1, 2, 3])
    iterations = decoder.iterations(40)
    first = next(iterations)
    while len(first.tokens) == 1:
        first = next(iterations)
    engine.replayed.clear()
    next(iterations)
    roles = [role for role, *_ in steps_of(engine)]
    assert roles[-1] == "draft" and set(roles[:-1]) == {"verify"} and len(roles) > 1


def test_the_window_of_a_block() -> None:
    """Pending rows are causal; masks see each other both ways only where they were trained so."""
    for attention in ("causal", "full"):
        states = final_states(block_attention=attention, mask_embeddings=3)
        engine = HashEngine(states)
        decoder = Decoder(engine, states, SpeculativeOnly(4), check=True)
        decoder.prefill([7, 8, 9])
        decoder.prefix.verified = decoder.prefix.drafted = 1  # two pending tokens
        engine.replayed.clear()
        decoder.policy.begin(decoder, 4)
        ((_, window),) = engine.replayed
        assert window.token_ids.tolist() == [8, 9, -1, -2, -3]
        assert window.positions.tolist() == [1, 2, 3, 4, 5]
        assert window.head_slots.tolist() == [1, 2, 3, 4]
        seen = [len(visible_slots(window, row)) for row in range(5)]
        assert seen == ([1, 2, 3, 4, 5] if attention == "causal" else [1, 2, 5, 5, 5])


def test_a_block_with_full_attention_is_always_whole() -> None:
    """Near the end fewer drafts are taken, of as many masks."""
    states = final_states(block_attention="full")
    engine = HashEngine(states, noise=0)
    decoder = Decoder(engine, states, SpeculativeOnly(4), check=True)
    decoder.prefill([1, 2, 3])
    engine.replayed.clear()
    (iteration,) = list(decoder.iterations(6))
    assert (iteration.drafted, len(iteration.tokens), iteration.forced_end) == (2, 3, True)
    assert steps_of(engine) == [("draft", 4, 4, 2), ("verify", 3, 3, 2)]
    assert decoder.prefix.tokens == [1, 2, 3, *engine.reply([1, 2, 3], 3)]


def test_the_first_draft_of_final_rows_is_right() -> None:
    """The anchor's row is a verify row's, so even a confidence of nothing commits AR's token."""
    states = final_states()
    engine = HashEngine(states, noise=0)
    decoder = Decoder(engine, states, ConfidenceOnly(4, 1.0))
    decoder.prefill([1, 2, 3])
    for iteration in decoder.iterations(30):
        if iteration.confident == 0 and not iteration.verified:
            assert len(iteration.tokens) == 1
    assert decoder.prefix.tokens == [1, 2, 3, *engine.reply([1, 2, 3], 27)]


def test_policies_of_other_blocks_take_turns_on_one_sequence() -> None:
    states = final_states(draft_widths=tuple(range(1, 16)), draft_outputs=8)
    engine = HashEngine(states, noise=0)
    decoder = Decoder(engine, states, SpeculativeOnly(8))
    prompt = [3, 1, 4]
    decoder.prefill(prompt)
    turns: list[tuple[int, Policy]] = [
        (20, Hybrid(8, 0.3, 1)),
        (30, NestedSelfSpeculation(3)),
        (40, ConfidenceOnly(2, 0.3)),
        (50, AutoRegressive()),
        (64, SpeculativeOnly(4)),
    ]
    for length, policy in turns:
        decoder.policy = policy
        list(decoder.iterations(length))
    assert decoder.prefix.tokens == prompt + engine.reply(prompt, 61)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SpeculativeOnly(1), "block is 1: expected at least 2"),
        (lambda: ConfidenceOnly(4, 0.0), "tau is 0.0: expected a probability above 0"),
        (lambda: ConfidenceOnly(4, 1.1), "tau is 1.1"),
        (lambda: ConfidenceOnly(4, float("nan")), "tau is nan"),
        (lambda: Hybrid(4, 0.9, 0), "min_prefix is 0: expected 1 to 4"),
        (lambda: Hybrid(4, 0.9, 5), "min_prefix is 5: expected 1 to 4"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask_embeddings": 0}, "policy speculative drafts with mask embeddings"),
        ({"mask_embeddings": 2}, "block is 4, but the model has 2 mask embeddings"),
        ({"draft_widths": (1, 3)}, "no draft window holds 4 tokens"),
        ({"verify_widths": (1, 4)}, "no verify window holds 5 tokens"),
    ],
)
def test_a_model_that_cannot_serve_it_is_refused(changes: dict[str, object], words: str) -> None:
    states = final_states(**changes)
    with pytest.raises(UserError, match=words):
        Decoder(HashEngine(states), states, SpeculativeOnly(4))


def test_confidence_and_sampling_exclude_each_other() -> None:
    states = final_states()
    warm = SamplingParams(0.7)
    for policy in (ConfidenceOnly(4, 0.9), Hybrid(4, 0.9, 2), force_reject(Hybrid(4, 0.9, 2))):
        with pytest.raises(UserError, match="does not sample"):
            Decoder(HashEngine(states), states, policy, sampling=warm)
        Decoder(HashEngine(states), states, policy, sampling=SamplingParams())
    Decoder(HashEngine(states), states, SpeculativeOnly(4), sampling=warm)


def test_tau_itself_is_confident() -> None:
    policy = Hybrid(4, 0.5, 2)
    assert policy.confident(Drafts([1, 2, 3], [0.5, 0.75, 0.25])) == 2
    assert policy.confident(Drafts([1, 2], [0.25, 1.0])) == 0
    assert policy.confident(Drafts([1, 2], [1.0, float(np.float32(0.5))])) == 2
    assert [policy.unverified(h) for h in range(5)] == [0, 0, 2, 3, 4]
    assert [ConfidenceOnly(4, 0.5).unverified(h) for h in range(3)] == [1, 1, 2]
