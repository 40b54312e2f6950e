"""The CPU engine over a tiny bundle: the contract, its plans, and what it refuses."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines import cpu_library
from bitmtp_edge.engines.base import ReplayState, Role, Window, check_window, visible_slots
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.engines.onnxruntime import OnnxRuntimeEngine
from bitmtp_edge.errors import UserError

from .steps import Tree, output_bits, play, step

RANDOM = np.random.default_rng(5)
TOKENS: list[int] = RANDOM.integers(0, 301, 700).tolist()
HISTORY = 20


@pytest.fixture(params=["tiny_bundle", "fp16_bundle"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    found: Bundle = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def engine(tiny_bundle: Bundle) -> Iterator[CpuEngine]:
    with CpuEngine(tiny_bundle, threads=2) as opened:
        yield opened


# ---- against ONNX Runtime ------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["draft", "verify"])
def test_the_same_steps_as_onnx_runtime(bundle: Bundle, role: Role) -> None:
    """One int8 code that rounds the other way moves what follows, so values are near, not equal."""
    with CpuEngine(bundle) as ours, OnnxRuntimeEngine(bundle) as theirs:
        for each in (ours, theirs):
            play(each, TOKENS[:HISTORY])
        got, want = (step(e, TOKENS[: HISTORY + 8], HISTORY, role=role) for e in (ours, theirs))
        assert got.logits is not None and want.logits is not None
        assert got.token_ids.dtype == want.token_ids.dtype == np.int32
        assert got.probability.dtype == want.probability.dtype == np.float32
        assert got.token_ids.shape == got.probability.shape == (8, 1)
        error = np.abs(got.logits - want.logits).max(axis=1) / np.abs(want.logits).max(axis=1)
        assert np.median(error) < 0.02
        assert (got.token_ids == want.token_ids).mean() >= 0.75
        same = (got.token_ids == want.token_ids)[:, 0]
        np.testing.assert_allclose(got.probability[same], want.probability[same], rtol=0.5)


def test_ids_and_probabilities_are_those_of_the_logits(engine: CpuEngine) -> None:
    got = step(engine, TOKENS[:9], 0)
    assert got.logits is not None
    wide = np.exp(got.logits.astype(np.float64) - got.logits.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(got.token_ids[:, 0], got.logits.argmax(axis=1))
    np.testing.assert_allclose(got.probability[:, 0], 1 / wide.sum(axis=1), rtol=1e-5)


# ---- one set of bits -----------------------------------------------------------------------------


def test_every_instruction_set_and_thread_count_gives_the_same_bits(bundle: Bundle) -> None:
    seen: dict[bytes, list[str]] = {}
    for isa, threads in itertools.product(cpu_library.isas(), (1, 2, 3)):
        with CpuEngine(bundle, threads=threads, isa=isa, keep_tensors=True) as engine:
            bits = b""
            for role, rows in (("verify", 17), ("draft", 1), ("draft", 5), ("verify", 40)):
                play(engine, TOKENS[:HISTORY])
                step(engine, TOKENS[: HISTORY + rows], HISTORY, role=role, kv4_length=0)
                tensors = engine.tensors()
                assert tensors is not None
                bits += b"".join(tensors[name].tobytes() for name in sorted(tensors))
            seen.setdefault(bits, []).append(f"{isa} {threads}")
    assert len(seen) == 1, list(seen.values())


def test_two_engines_keep_their_own_instruction_set(tiny_bundle: Bundle) -> None:
    """Plans are made at their first use, so the choice must hold until then."""
    library = cpu_library._library()
    with CpuEngine(tiny_bundle, isa="scalar") as scalar, CpuEngine(tiny_bundle) as best:
        step(best, TOKENS[:2], 0)
        assert library.bitmtp_cpu_isa().decode() == cpu_library.isas()[0]
        step(scalar, TOKENS[:2], 0)
        assert library.bitmtp_cpu_isa() == b"scalar"
        step(best, TOKENS[:3], 0)
        assert library.bitmtp_cpu_isa().decode() == cpu_library.isas()[0]


def test_two_engines_on_one_bundle_do_not_meet(bundle: Bundle) -> None:
    with CpuEngine(bundle, threads=1) as alone:
        play(alone, TOKENS[:HISTORY])
        want = step(alone, TOKENS[: HISTORY + 2], HISTORY)
    with CpuEngine(bundle, threads=2) as one, CpuEngine(bundle, threads=1) as other:
        for at in range(0, HISTORY, 4):
            step(one, TOKENS[: at + 4], at)
            step(other, TOKENS[100 : 100 + at + 4], at)
            one.promote(range(4), at)
            other.promote(range(4), at)
        got = step(one, TOKENS[: HISTORY + 2], HISTORY)
        assert [output_bits(got, i) for i in range(2)] == [output_bits(want, i) for i in range(2)]


# ---- steps, history, segments --------------------------------------------------------------------


def test_a_later_step_does_not_change_an_output(engine: CpuEngine) -> None:
    first = step(engine, TOKENS[:5], 0)
    copies = [output_bits(first, i) for i in range(5)]
    step(engine, TOKENS[50:55], 0)
    engine.grow(1024, 0)
    step(engine, TOKENS[60:65], 0)
    assert [output_bits(first, i) for i in range(5)] == copies


def test_the_logits_variant_differs_in_nothing_else(engine: CpuEngine) -> None:
    bare, full = (step(engine, TOKENS[:5], 0, logits=flag) for flag in (False, True))
    assert bare.logits is None and full.logits is not None
    assert full.logits.shape == (5, 301)
    np.testing.assert_array_equal(bare.token_ids, full.token_ids)
    np.testing.assert_array_equal(bare.probability, full.probability)


def test_promoted_rows_may_be_any_rows(engine: CpuEngine, tiny_bundle: Bundle) -> None:
    """A path of a tree becomes history as if its tokens had been steps."""
    tree = Tree((-1, 0, 0, 2, 1, 3))
    ids = [TOKENS[0], 7, TOKENS[1], TOKENS[2], 8, TOKENS[3]]
    window = tree.window(ids, 0)
    check_window(state := ReplayState(6, 6, engine.segment, "verify"), window)
    engine.replay(state, window)
    engine.promote([0, 2, 3, 5], 0)
    got = step(engine, TOKENS[:6], 4)
    with CpuEngine(tiny_bundle) as other:
        play(other, TOKENS[:4])
        want = step(other, TOKENS[:6], 4)
    assert [output_bits(got, i) for i in range(2)] == [output_bits(want, i) for i in range(2)]


def test_growing_keeps_history(bundle: Bundle) -> None:
    with CpuEngine(bundle) as engine:
        first, second = bundle.replay.segments
        play(engine, TOKENS[:HISTORY])
        before = step(engine, TOKENS[: HISTORY + 3], HISTORY)
        engine.grow(first, HISTORY)  # nothing to do
        assert engine.segment == first
        engine.grow(second, HISTORY)
        assert engine.segment == second
        after = step(engine, TOKENS[: HISTORY + 3], HISTORY)
        for row in range(3):
            assert output_bits(before, row) == output_bits(after, row)
        engine.grow(first, HISTORY)  # a new, shorter turn
        again = step(engine, TOKENS[: HISTORY + 3], HISTORY)
        assert output_bits(again, 2) == output_bits(before, 2)


def test_a_full_segment(bundle: Bundle) -> None:
    with CpuEngine(bundle) as engine, CpuEngine(bundle) as longer:
        segment = engine.segment
        longer.grow(bundle.replay.segments[-1], 0)
        for each in (engine, longer):
            play(each, TOKENS[:segment], width=128)
        got, want = (step(e, TOKENS[: segment + 9], segment) for e in (engine, longer))
        assert [output_bits(got, i) for i in range(9)] == [output_bits(want, i) for i in range(9)]


def test_the_draft_role_reads_kv4_below_its_length(engine: CpuEngine) -> None:
    play(engine, TOKENS[:HISTORY])
    outputs = {
        length: output_bits(step(engine, TOKENS[:21], 20, role="draft", kv4_length=length), 0)
        for length in (0, 10, 20)
    }
    assert len(set(outputs.values())) == 3


# ---- plans ---------------------------------------------------------------------------------------


def test_a_plan_is_made_once(engine: CpuEngine) -> None:
    state = ReplayState(3, 1, engine.segment, "verify")
    assert engine.plan(state) is engine.plan(replace(state))
    assert engine.plan(state) is not engine.plan(replace(state, logits=True))
    old = engine.plan(state)
    engine.grow(1024, 0)
    assert engine.plan(replace(state, segment=1024)) is not old


def test_plans_of_any_order_share_the_arena(tiny_bundle: Bundle) -> None:
    """A later plan with logits takes a larger arena; earlier plans go on working."""
    with CpuEngine(tiny_bundle) as engine:
        small = step(engine, TOKENS[:2], 0, logits=False)
        step(engine, TOKENS[:100], 0)
        gc.collect()
        again = step(engine, TOKENS[:2], 0, logits=False)
        assert output_bits(small, 1) == output_bits(again, 1)


@pytest.mark.parametrize("width", [1, 5, 33, 128])
def test_a_plan_made_after_others_is_as_one_made_first(tiny_bundle: Bundle, width: int) -> None:
    """Plans are made from the same records: none keeps a width or outputs of the one before."""
    with CpuEngine(tiny_bundle) as first, CpuEngine(tiny_bundle) as later:
        for before in (128, 2):
            step(later, TOKENS[:before], 0)
        got, want = (step(e, TOKENS[: width - width // 3], 0, width=width) for e in (later, first))
        assert len(got.token_ids) == len(want.token_ids) == width - width // 3
        for row in range(len(got.token_ids)):
            assert output_bits(got, row) == output_bits(want, row)


def test_kept_tensors_are_those_of_the_step(tiny_bundle: Bundle, engine: CpuEngine) -> None:
    assert engine.tensors() is None
    with CpuEngine(tiny_bundle, keep_tensors=True) as keeping:
        assert keeping.tensors() is None
        got = step(keeping, TOKENS[:5], 0)
        want = step(engine, TOKENS[:5], 0)
        assert [output_bits(got, i) for i in range(5)] == [output_bits(want, i) for i in range(5)]
        tensors = keeping.tensors()
        assert tensors is not None
        made = {name for node in tiny_bundle.nodes("verify") for name in node.outputs}
        assert made <= tensors.keys()
        np.testing.assert_array_equal(tensors["next_token_ids"], got.token_ids)
        assert tensors["layers.0.history"].shape[0] == keeping.segment
        tensors["next_token_ids"][:] = -5
        fresh = keeping.tensors()
        assert fresh is not None and (fresh["next_token_ids"] == got.token_ids).all()


def test_a_profile_times_every_node(engine: CpuEngine, tiny_bundle: Bundle) -> None:
    state = ReplayState(5, 5, engine.segment, "verify")
    times = engine.profile(state, causal_window(TOKENS[:5], 0, [], 5, 5, 5))
    assert [node for node, _ in times] == tiny_bundle.nodes("verify")
    assert all(nanoseconds > 0 for _, nanoseconds in times)


def test_an_empty_plan_runs_nothing(tiny_bundle: Bundle) -> None:
    with CpuEngine(tiny_bundle, empty=True) as engine:
        assert (step(engine, TOKENS[:5], 0).probability == 0).all()


# ---- what is refused -----------------------------------------------------------------------------


def test_states_out_of_range(engine: CpuEngine) -> None:
    window = causal_window(TOKENS[:2], 0, [], 2, 2, 2)
    good = ReplayState(2, 2, engine.segment, "verify")
    for state in (
        replace(good, segment=1024),
        replace(good, width=129),
        replace(good, width=0),
        replace(good, outputs=0),
        replace(good, outputs=129),
    ):
        with pytest.raises(ValueError, match=r"segment|width|head slots"):
            engine.replay(state, window)
    engine.replay(good, window)


@pytest.mark.parametrize(
    "change",
    [
        lambda w: replace(w, token_ids=w.token_ids[:1]),
        lambda w: replace(w, positions=w.positions[:1]),
        lambda w: replace(w, mask=w.mask[:1]),
        lambda w: replace(w, mask=np.ones((5, 2), np.int32)),
        lambda w: replace(w, head_slots=w.head_slots[:1]),
        lambda w: replace(w, head_slots=np.array([0, 1, 2, 3, 5], np.int32)),
        lambda w: replace(w, head_slots=np.array([0, 1, 2, 3, -1], np.int32)),
        lambda w: replace(w, head_slots=np.array([0, 1, 2, 3, 2**31 - 1], np.int32)),
    ],
    ids=["ids", "positions", "mask", "mask words", "slots", "slot 5", "slot -1", "slot 2**31-1"],
)
def test_windows_that_are_not_the_states(
    engine: CpuEngine, change: Callable[[Window], Window]
) -> None:
    state = ReplayState(5, 5, engine.segment, "verify")
    with pytest.raises(ValueError, match=r"window|slots"):
        engine.replay(state, change(causal_window(TOKENS[:5], 0, [], 5, 5, 5)))


WILD = (-(2**31), -2, -1, 301, 100_000, 2**31 - 1)


@pytest.mark.parametrize("value", WILD)
@pytest.mark.parametrize("part", ["token_ids", "positions", "history_length", "kv4_length", "mask"])
def test_wild_values_stay_inside_memory(bundle: Bundle, part: str, value: int) -> None:
    """The kernels clamp what Python does not look at: the step ends, and a good one is as ever."""
    with CpuEngine(bundle) as engine:
        want = step(engine, TOKENS[:5], 0)
        window = causal_window(TOKENS[:5], 0, [], 5, 5, 5)
        scalar = part in ("history_length", "kv4_length")
        wild = value if scalar else np.full_like(getattr(window, part), value)
        for role in ("verify", "draft"):
            state = ReplayState(5, 5, engine.segment, role)
            engine.replay(state, replace(window, **{part: wild}))
        got = step(engine, TOKENS[:5], 0)
        assert [output_bits(got, i) for i in range(5)] == [output_bits(want, i) for i in range(5)]


@pytest.mark.parametrize("make", [CpuEngine, OnnxRuntimeEngine])
def test_promotion_outside_the_buffer(
    make: Callable[[Bundle], CpuEngine | OnnxRuntimeEngine], tiny_bundle: Bundle
) -> None:
    with make(tiny_bundle) as engine:
        segment = engine.segment
        for rows, at in (([0], segment), ([0], -1), ([0, 1], segment - 1), ([128], 0), ([-1], 0)):
            with pytest.raises(ValueError, match="rows"):
                engine.promote(rows, at)
        engine.promote([127], segment - 1)
        engine.promote([], 0)
        with pytest.raises(ValueError, match="do not fit"):
            engine.grow(1024, segment + 1)


def test_a_closed_engine(tiny_bundle: Bundle) -> None:
    engine = CpuEngine(tiny_bundle)
    step(engine, TOKENS[:2], 0)
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        step(engine, TOKENS[:2], 0)


def test_an_unknown_instruction_set(tiny_bundle: Bundle) -> None:
    with pytest.raises(UserError, match="instruction set 'mmx' does not run here"):
        CpuEngine(tiny_bundle, isa="mmx")


# ---- the contract's own check --------------------------------------------------------------------


def test_the_check_of_windows() -> None:
    state = ReplayState(5, 5, 512, "verify")
    good = causal_window(TOKENS[:9], 4, [], 5, 5, 5)
    check_window(state, good)
    assert visible_slots(good, 2) == [0, 1, 2]
    for broken in (
        replace(good, positions=good.positions + np.int32(1)),
        replace(good, history_length=3),
        replace(good, kv4_length=1),
        replace(good, mask=good.mask[::-1]),
        replace(good, head_slots=good.head_slots + np.int32(1)),
    ):
        with pytest.raises(AssertionError):
            check_window(state, broken)
