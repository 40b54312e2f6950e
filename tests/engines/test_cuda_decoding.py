"""Whole replies on the CUDA engine: every policy, long ones, several sequences, many iterations."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import count, zip_longest

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    Hybrid,
    NestedSelfSpeculation,
    SpeculativeOnly,
)
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.cuda import CudaEngine
from bitmtp_edge.session import Session

from .cuda_steps import TOKENS, Open, decode


@pytest.mark.parametrize("gamma", [1, 4])
def test_nested_drafting_is_lossless(tiny_bundle: Bundle, opened: Open, gamma: int) -> None:
    with opened(tiny_bundle) as engine:
        want = decode(engine, tiny_bundle, AutoRegressive(), 60)
        policy = NestedSelfSpeculation(gamma, kv4_from_segment=1, recent_n=4)
        assert decode(engine, tiny_bundle, policy, 60) == want


@pytest.mark.parametrize("block", [2, 4])
def test_block_drafting_is_lossless(tiny_ternary_bundle: Bundle, opened: Open, block: int) -> None:
    with opened(tiny_ternary_bundle) as engine:
        want = decode(engine, tiny_ternary_bundle, AutoRegressive(), 60)
        assert decode(engine, tiny_ternary_bundle, SpeculativeOnly(block), 60) == want


def test_two_sequences_take_turns_on_one_engine(tiny_bundle: Bundle, opened: Open) -> None:
    """As of two sessions: each turn begins with a prefill, and captured graphs serve both."""
    with opened(tiny_bundle) as engine:
        policy = NestedSelfSpeculation(2)
        want = [decode(engine, tiny_bundle, policy, 20, at) for at in (0, 300)]
        for _ in range(3):
            gc.collect()
            assert [decode(engine, tiny_bundle, policy, 20, at) for at in (0, 300)] == want


def test_a_long_reply_grows_its_segment(tiny_ternary_bundle: Bundle, opened: Open) -> None:
    """Past the first segment, to the end of the context."""
    policy = SpeculativeOnly(4)
    first, *_, last = tiny_ternary_bundle.replay.segments
    with opened(tiny_ternary_bundle) as engine:
        count = min(first + 60, ReplayStates.of(tiny_ternary_bundle).context - 13)
        got = decode(engine, tiny_ternary_bundle, policy, count)
        assert len(got) == count and engine.segment == last
        assert decode(engine, tiny_ternary_bundle, AutoRegressive(), count) == got


def test_two_sessions_interleave(tiny_ternary_bundle: Bundle, opened: Open) -> None:
    """Iteration by iteration, over the same weights on one device, past a segment's end."""
    bundle = tiny_ternary_bundle
    policies, starts = (Hybrid(4, 0.3, 2), SpeculativeOnly(4)), (0, 300)
    limits = (bundle.replay.segments[0] + 20, 200)
    with opened(bundle) as engine, engine.beside(CudaEngine) as other:
        sessions = [Session(bundle, each) for each in (engine, other)]

        def begin(index: int) -> tuple[Decoder, Iterator[object]]:
            decoder = sessions[index].decoder(policies[index])
            decoder.prefill(TOKENS[starts[index] : starts[index] + 12])
            return decoder, decoder.iterations(limits[index])

        want = []
        for index in (0, 1):
            decoder, iterations = begin(index)
            assert sum(1 for _ in iterations) > 10
            want.append(list(decoder.prefix.tokens))
        engine.grow(bundle.replay.segments[0], 0)
        (first, ours), (second, theirs) = begin(0), begin(1)
        for turn, _ in enumerate(zip_longest(ours, theirs)):
            if turn % 16 == 0:
                gc.collect()
        assert [first.prefix.tokens, second.prefix.tokens] == want
        assert engine.segment > bundle.replay.segments[0] == other.segment


SOAK = (SpeculativeOnly(4), Hybrid(4, 0.3, 2), AutoRegressive())


@pytest.mark.gpu
def test_ten_thousand_iterations(tiny_ternary_bundle: Bundle) -> None:
    """With growth, shrinking and collections between: the same prompt and policy always give the
    same tokens, and those of a policy without unverified ones are AR's."""
    bundle = tiny_ternary_bundle
    first, *_, last = bundle.replay.segments
    iterations = grown = 0
    seen: dict[tuple[int, bool], list[int]] = {}
    with CudaEngine(bundle) as engine:
        for turn in count():
            if iterations >= 10_000:
                break
            policy, at = SOAK[turn % len(SOAK)], 20 * (turn % 5)
            engine.grow(last if turn % 4 == 3 else first, 0)
            before = engine.segment
            decoder = Decoder(engine, ReplayStates.of(bundle), policy)
            decoder.prefill(TOKENS[at : at + 12])
            limit = first + 40 if turn % 7 == 0 else 200
            iterations += sum(1 for _ in decoder.iterations(limit))
            grown += engine.segment > before
            tokens = list(decoder.prefix.tokens)
            same = seen.setdefault((at, isinstance(policy, Hybrid)), tokens)
            shared = min(len(same), len(tokens))
            assert same[:shared] == tokens[:shared], (turn, policy)
            seen[at, isinstance(policy, Hybrid)] = max(same, tokens, key=len)
            if turn % 10 == 9:
                gc.collect()
    assert len(seen) == 10 and grown >= 3
