"""What a step of the CUDA engine gives: the CPU engine's values, one row's bits in every window."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.base import ReplayState, Role
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.engines.cuda import CudaEngine

from .cuda_steps import HISTORY, TOKENS, Open, bits, on_host
from .steps import Tree, output_bits, play, step


def test_on_the_host_a_step_is_the_cpu_engines(bundle: Bundle) -> None:
    with on_host(bundle) as engine, CpuEngine(bundle, threads=1) as cpu:
        for each in (engine, cpu):
            play(each, TOKENS[:HISTORY])
        shapes = itertools.product(("verify", "draft"), (1, 2, 9, 17, 33), (True, False), range(3))
        for role, rows, logits, _ in shapes:  # three times: launches, then the captured graph twice
            run = partial(step, history=HISTORY, role=role, logits=logits)
            got, want = (run(each, TOKENS[: HISTORY + rows]) for each in (engine, cpu))
            assert bits(got) == bits(want), (role, rows, logits)


@pytest.mark.parametrize("role", ["draft", "verify"])
def test_near_the_cpu_engine(bundle: Bundle, opened: Open, role: Role) -> None:
    with opened(bundle) as ours, CpuEngine(bundle) as theirs:
        for each in (ours, theirs):
            play(each, TOKENS[:HISTORY])
        got, want = (step(e, TOKENS[: HISTORY + 8], HISTORY, role=role) for e in (ours, theirs))
        assert got.logits is not None and want.logits is not None
        assert got.token_ids.shape == got.probability.shape == (8, 1)
        error = np.abs(got.logits - want.logits).max(axis=1) / np.abs(want.logits).max(axis=1)
        assert np.median(error) < 0.05
        assert (got.token_ids == want.token_ids).mean() >= 0.5


def test_ids_and_probabilities_are_those_of_the_logits(engine: CudaEngine) -> None:
    got = step(engine, TOKENS[:9], 0)
    assert got.logits is not None
    wide = np.exp(got.logits.astype(np.float64) - got.logits.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(got.token_ids[:, 0], got.logits.argmax(axis=1))
    np.testing.assert_allclose(got.probability[:, 0], 1 / wide.sum(axis=1), rtol=1e-5)


def test_the_logits_variant_differs_in_nothing_else(engine: CudaEngine) -> None:
    bare, full = (step(engine, TOKENS[:5], 0, logits=flag) for flag in (False, True))
    assert bare.logits is None and full.logits is not None
    np.testing.assert_array_equal(bare.token_ids, full.token_ids)
    np.testing.assert_array_equal(bare.probability, full.probability)


def test_a_row_has_the_same_bits_in_every_window(bundle: Bundle, opened: Open) -> None:
    """At every split of the context, padded or not, in both segments; captured and not."""
    position = 40
    tokens = TOKENS[: position + 1]
    with opened(bundle) as engine:
        seen = set()
        for segment in bundle.replay.segments[:2]:
            engine.grow(segment, 0)
            play(engine, tokens[:-1], width=16)
            for history in (0, 1, 7, 24, 31, 32, 33, 38, 39, position):
                rows = position + 1 - history
                for width in {rows, min(rows + 5, bundle.replay.max_width)}:
                    output = step(engine, tokens, history, width=width)
                    again = step(engine, tokens, history, width=width)
                    seen |= {output_bits(output, rows - 1), output_bits(again, rows - 1)}
        assert len(seen) == 1


def test_a_path_of_a_tree_is_a_sequence(engine: CudaEngine, tiny_bundle: Bundle) -> None:
    tree = Tree((-1, 0, 0, 2, 1, 3))
    ids = [TOKENS[0], 7, TOKENS[1], TOKENS[2], 8, TOKENS[3]]
    engine.replay(ReplayState(6, 6, engine.segment, "verify"), tree.window(ids, 0))
    engine.promote([0, 2, 3, 5], 0)
    got = bits(step(engine, TOKENS[:6], 4))
    play(engine, TOKENS[:4])
    assert got == bits(step(engine, TOKENS[:6], 4))


def test_kept_tensors_are_those_of_the_step(tiny_bundle: Bundle, opened: Open) -> None:
    with opened(tiny_bundle) as plain, opened(tiny_bundle, keep_tensors=True) as keeping:
        assert plain.tensors() is None and keeping.tensors() is None
        got, want = (step(engine, TOKENS[:5], 0) for engine in (keeping, plain))
        assert bits(got) == bits(want)
        tensors = keeping.tensors()
        assert tensors is not None
        made = {name for node in tiny_bundle.nodes("verify") for name in node.outputs}
        assert made <= tensors.keys()
        np.testing.assert_array_equal(tensors["next_token_ids"], got.token_ids)
        np.testing.assert_array_equal(tensors["token_ids"], TOKENS[:5])
        assert tensors["layers.0.history"].shape[0] == keeping.segment
        assert plain.tensors() is None
