"""How steps of the CUDA engine follow each other: order, growth, times; and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import ReplayState, Window
from bitmtp_edge.engines.cuda import CudaEngine

from .cuda_steps import HISTORY, TOKENS, Open, bits
from .steps import play, step


def test_steps_follow_at_once(bundle: Bundle, opened: Open) -> None:
    """Started, promoted and started again, without a look: as if each was waited for."""
    with opened(bundle) as engine:
        play(engine, TOKENS[:32])
        want = bits(step(engine, TOKENS[:40], 32))
        for at in range(0, 32, 8):
            state = ReplayState(8, 1, engine.segment, "verify")
            engine.start(state, causal_window(TOKENS[: at + 8], at, [], 8, 1, 1))
            engine.promote(range(8), at)
        assert bits(step(engine, TOKENS[:40], 32)) == want


def test_growing_keeps_history(bundle: Bundle, opened: Open) -> None:
    with opened(bundle) as engine:
        first, second = bundle.replay.segments
        play(engine, TOKENS[:HISTORY])
        before = bits(step(engine, TOKENS[: HISTORY + 3], HISTORY))
        engine.grow(first, HISTORY)  # nothing to do
        assert engine.segment == first
        engine.grow(second, HISTORY)
        assert engine.segment == second
        assert bits(step(engine, TOKENS[: HISTORY + 3], HISTORY)) == before
        engine.grow(first, HISTORY)  # a new, shorter turn
        assert bits(step(engine, TOKENS[: HISTORY + 3], HISTORY)) == before


def test_steps_that_are_not_captured_may_alternate(tiny_bundle: Bundle, opened: Open) -> None:
    with opened(tiny_bundle) as plain, opened(tiny_bundle, keep_tensors=True) as keeping:
        for turn, rows in enumerate((5, 17, 5, 1, 17)):
            tokens = TOKENS[20 * turn :][:rows]  # others each time: nothing of an earlier step fits
            got, want = (step(engine, tokens, 0) for engine in (keeping, plain))
            assert bits(got) == bits(want), rows


def test_a_profile_times_every_node(engine: CudaEngine, tiny_bundle: Bundle) -> None:
    state = ReplayState(5, 5, engine.segment, "verify")
    window = causal_window(TOKENS[:5], 0, [], 5, 5, 5)
    want = bits(engine.replay(state, window))
    times = engine.profile(state, window)
    assert [node for node, _ in times] == tiny_bundle.nodes("verify")
    assert all(nanoseconds > 0 for _, nanoseconds in times)
    assert bits(engine.replay(state, window)) == want


def test_states_out_of_range(engine: CudaEngine) -> None:
    window = causal_window(TOKENS[:2], 0, [], 2, 2, 2)
    good = ReplayState(2, 2, engine.segment, "verify")
    for state in (
        replace(good, segment=1024),
        replace(good, width=129),
        replace(good, outputs=0),
        replace(good, width=3),
    ):
        with pytest.raises(ValueError, match=r"segment|width|head slots|window"):
            engine.replay(state, window)
    engine.replay(good, window)


def test_rows_out_of_range(engine: CudaEngine) -> None:
    step(engine, TOKENS[:2], 0)
    for rows, at in (([0], -1), ([0], engine.segment), ([-1], 0), ([engine.segment], 0)):
        with pytest.raises(ValueError, match=r"rows"):
            engine.promote(rows, at)
    engine.promote([], 0)


WILD = (-(2**31), -2, -1, 301, 100_000, 2**31 - 1)


@pytest.mark.parametrize("value", WILD)
@pytest.mark.parametrize("part", ["token_ids", "positions", "history_length", "kv4_length", "mask"])
def test_wild_values_stay_inside_memory(engine: CudaEngine, part: str, value: int) -> None:
    window = causal_window(TOKENS[:5], 0, [], 5, 5, 5)
    wild: int | np.ndarray = value
    if isinstance(getattr(window, part), np.ndarray):
        wild = np.full_like(getattr(window, part), value)
    changed: Window = replace(window, **{part: wild})
    engine.replay(ReplayState(5, 5, engine.segment, "draft"), changed)
    assert step(engine, TOKENS[:5], 0).token_ids.shape == (5, 1)
