"""The CUDA engine over a tiny bundle, once on host memory and once, marked ``gpu``, on a GPU.

On the host its kernels are the CPU engine's, so that all else, the engine's own part, must give the
CPU engine's bits.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    Hybrid,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.sampling import SamplingParams
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import ReplayState, Role, StagedStep, StepOutput, Window
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.engines.cuda import CudaEngine
from bitmtp_edge.inspection import kv_buffer_bytes
from bitmtp_edge.verification import verify

from .host_device import HostDevice, HostLibrary
from .steps import Tree, output_bits, play, step

RANDOM = np.random.default_rng(9)
TOKENS: list[int] = RANDOM.integers(0, 301, 1000).tolist()
HISTORY = 20

Open = Callable[..., CudaEngine]


def on_host(bundle: Bundle, keep_tensors: bool = False) -> CudaEngine:
    device = HostDevice()
    library = HostLibrary(device)
    return CudaEngine(bundle, keep_tensors=keep_tensors, device=device, library=library)


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def opened(request: pytest.FixtureRequest) -> Open:
    return on_host if request.param == "host" else CudaEngine


@pytest.fixture(params=["tiny_bundle", "fp16_bundle", "tiny_ternary_bundle"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    found: Bundle = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def engine(tiny_bundle: Bundle, opened: Open) -> Iterator[CudaEngine]:
    with opened(tiny_bundle) as engine:
        yield engine


def bits(output: StepOutput) -> list[tuple[bytes, ...]]:
    return [output_bits(output, row) for row in range(len(output.token_ids))]


# ---- the engine's own part, on the host ---------------------------------------------------------


def test_on_the_host_a_step_is_the_cpu_engines(bundle: Bundle) -> None:
    with on_host(bundle) as engine, CpuEngine(bundle, threads=1) as cpu:
        for each in (engine, cpu):
            play(each, TOKENS[:HISTORY])
        shapes = itertools.product(("verify", "draft"), (1, 2, 9, 17, 33), (True, False), range(3))
        for role, rows, logits, _ in shapes:  # three times: launches, then the captured graph twice
            run = partial(step, history=HISTORY, role=role, logits=logits)
            got, want = (run(each, TOKENS[: HISTORY + rows]) for each in (engine, cpu))
            assert bits(got) == bits(want), (role, rows, logits)


def test_a_step_is_two_small_copies_and_a_graph(tiny_bundle: Bundle) -> None:
    device = HostDevice()
    with CudaEngine(tiny_bundle, device=device, library=HostLibrary(device)) as engine:
        for _ in range(3):
            before = device.sent, device.fetched
            step(engine, TOKENS[:9], 0, logits=False)
            assert device.sent - before[0] < 8192
            assert device.fetched - before[1] < 1024
        assert device.captures == 1
        step(engine, TOKENS[:5], 0, logits=False)
        assert device.captures == 2


def test_states_share_memory(tiny_bundle: Bundle) -> None:
    """One arena, one block of weights, one KV buffer; outputs are a role's own."""
    device = HostDevice()
    with CudaEngine(tiny_bundle, device=device, library=HostLibrary(device)) as engine:
        for rows in (128, 1, 5, 17, 64):
            for role in ("verify", "draft"):
                step(engine, TOKENS[:rows], 0, role=role, logits=False)
        made = [purpose for purpose in device.allocated if "workspace" not in purpose]
        assert made.count("the weights") == 1
        assert made.count("the inputs of a step") == 1
        assert made.count("the outputs of a step") == 2
        assert sum("KV" in purpose for purpose in made) == 1
        assert made.count("the tensors of a step") <= 3  # an empty one, and one a role if it grows


# ---- against the CPU engine ----------------------------------------------------------------------


def test_memory_is_what_was_allocated(tiny_bundle: Bundle, opened: Open) -> None:
    with opened(tiny_bundle) as engine, CpuEngine(tiny_bundle, threads=1) as cpu:
        for each in (engine, cpu):
            assert each.memory()["arena"] == each.memory()["workspace"] == 0
            step(each, TOKENS[:9], 0, logits=False)
        told, other = engine.memory(), cpu.memory()
        assert min(told.values()) > 0
        assert told["kv"] == other["kv"] == kv_buffer_bytes(tiny_bundle, engine.segment)
        assert other["weights"] <= told["weights"] < other["weights"] * 1.1  # aligned there
        assert told["device"] >= sum(told.values()) - told["device"]
        assert other.keys() == told.keys() - {"device"}


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


# ---- lossless ------------------------------------------------------------------------------------


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


def decode(
    engine: CudaEngine, bundle: Bundle, policy: Policy, count: int, at: int = 0
) -> list[int]:
    decoder = Decoder(engine, ReplayStates.of(bundle), policy)
    prompt = TOKENS[at : at + 12]
    decoder.prefill(prompt)
    for _ in decoder.iterations(len(prompt) + count):
        pass
    return decoder.prefix.tokens[len(prompt) :]


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


# ---- staging -------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [1, 3, 30])
@pytest.mark.parametrize("spare", [0, 3])
@pytest.mark.parametrize("count", [0, 1, 6])
def test_a_staged_step_is_the_plain_one(
    engine: CudaEngine, prefix: int, spare: int, count: int
) -> None:
    """Also where the last step read KV4, and where the staged state was never captured."""
    play(engine, TOKENS[:HISTORY])
    history = HISTORY - prefix if prefix < HISTORY else 0
    known = TOKENS[history : history + prefix]
    width, heads = prefix + count + spare, min(3, prefix + count)
    state = ReplayState(width, heads, engine.segment, "verify")
    draft = ReplayState(6, 6, engine.segment, "draft")
    window = causal_window(TOKENS[: HISTORY + 6], HISTORY, [], 6, 6, 6, HISTORY)
    got = []
    for _ in range(3):
        drafts = engine.start(draft, window)
        staged = engine.stage(state, known, history, drafts, count, heads)
        assert staged is not None
        following = drafts.token_ids[:count, 0].tolist()
        got.append(staged.replay())
    tokens = TOKENS[: history + prefix]
    plain = causal_window(tokens, history, following, width, heads, heads)
    want = bits(engine.replay(state, plain))
    assert [bits(output) for output in got] == [want] * 3


def test_a_longer_prefix_is_left_to_the_host(engine: CudaEngine) -> None:
    drafts = engine.start(
        ReplayState(1, 1, engine.segment, "draft"), causal_window(TOKENS[:1], 0, [], 1, 1, 1)
    )
    state = ReplayState(66, 1, engine.segment, "verify")
    assert engine.stage(state, TOKENS[:65], 0, drafts, 1, 1) is None


def test_what_cannot_be_staged(engine: CudaEngine) -> None:
    state = ReplayState(3, 2, engine.segment, "verify")
    window = causal_window(TOKENS[:3], 0, [], 3, 2, 2)
    drafts = engine.start(state, window)
    for count, heads, prefix in ((3, 1, 1), (2, 1, 2), (1, 3, 1), (-1, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match=r"drafts|outputs"):
            engine.stage(state, TOKENS[:prefix], 0, drafts, count, heads)
    staged = engine.stage(state, TOKENS[:1], 0, drafts, 1, 2)
    assert staged is not None
    engine.replay(state, window)
    with pytest.raises(ValueError, match="another step has begun"):
        staged.replay()
    with pytest.raises(ValueError, match="the last step"):
        engine.stage(state, TOKENS[:1], 0, drafts, 1, 2)


def unstaged(engine: CudaEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the steps that were staged; hides staging from the loop after the first call."""
    staged = [0]
    stage = engine.stage

    def counted(*arguments: object) -> StagedStep | None:
        found: StagedStep | None = stage(*arguments)  # type: ignore[arg-type]
        staged[0] += found is not None
        return found

    monkeypatch.setattr(engine, "stage", counted)
    return staged


@pytest.mark.parametrize("policy", [SpeculativeOnly(4), Hybrid(4, 0.01, 2), Hybrid(4, 0.5, 4)])
def test_decoding_stages_and_commits_the_same(
    tiny_ternary_bundle: Bundle, opened: Open, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tiny_ternary_bundle) as engine:
        with monkeypatch.context() as plain:
            plain.setattr(engine, "stage", lambda *arguments: None)
            want = decode(engine, tiny_ternary_bundle, policy, 50)
        staged = unstaged(engine, monkeypatch)
        assert decode(engine, tiny_ternary_bundle, policy, 50) == want
        assert staged[0] > 0


def test_sampling_is_not_staged(
    tiny_ternary_bundle: Bundle, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tiny_ternary_bundle) as engine:
        staged = unstaged(engine, monkeypatch)
        decoder = Decoder(
            engine,
            ReplayStates.of(tiny_ternary_bundle),
            SpeculativeOnly(4),
            sampling=SamplingParams(temperature=1.0, seed=3),
        )
        decoder.prefill(TOKENS[:5])
        assert sum(len(each.tokens) for each in decoder.iterations(30)) == 25
        assert staged == [0]


# ---- history, segments, outputs ------------------------------------------------------------------


def test_an_output_outlives_later_steps(engine: CudaEngine) -> None:
    """Also one that nobody looked at before."""
    state = ReplayState(5, 5, engine.segment, "verify", logits=True)
    window = causal_window(TOKENS[:5], 0, [], 5, 5, 5)
    want = bits(engine.replay(state, window))
    unread = engine.start(state, window)
    step(engine, TOKENS[50:55], 0)
    engine.grow(1024, 0)
    step(engine, TOKENS[60:65], 0)
    gc.collect()
    assert bits(unread) == want


def test_an_output_outlives_its_engine(tiny_bundle: Bundle, opened: Open) -> None:
    with opened(tiny_bundle) as engine:
        state = ReplayState(5, 5, engine.segment, "verify")
        window = causal_window(TOKENS[:5], 0, [], 5, 5, 5)
        want = bits(engine.replay(state, window))
        unread = engine.start(state, window)
    assert bits(unread) == want
    engine.close()


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


def test_two_engines_take_turns(bundle: Bundle, opened: Open) -> None:
    with opened(bundle) as alone:
        play(alone, TOKENS[:HISTORY], width=4)
        want = bits(step(alone, TOKENS[: HISTORY + 2], HISTORY))
    with opened(bundle) as one, opened(bundle) as other:
        for at in range(0, HISTORY, 4):
            step(one, TOKENS[: at + 4], at)
            step(other, TOKENS[100 : 100 + at + 4], at)
            one.promote(range(4), at)
            other.promote(range(4), at)
            gc.collect()
        assert bits(step(one, TOKENS[: HISTORY + 2], HISTORY)) == want


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


@pytest.mark.gpu
def test_ten_thousand_iterations(tiny_ternary_bundle: Bundle) -> None:
    """With growth, shrinking and collections between; the same prompt always ends the same way."""
    iterations, turn = 0, 0
    seen: dict[int, list[int]] = {}
    with CudaEngine(tiny_ternary_bundle) as engine:
        first, *_, last = tiny_ternary_bundle.replay.segments
        while iterations < 10_000:
            decoder = Decoder(engine, ReplayStates.of(tiny_ternary_bundle), SpeculativeOnly(4))
            at, long = 20 * (turn % 5), turn % 3 == 0
            engine.grow(last if turn % 2 else first, 0)
            decoder.prefill(TOKENS[at : at + 12])
            iterations += sum(1 for _ in decoder.iterations(first + 40 if long else 200))
            tokens = decoder.prefix.tokens
            same = seen.setdefault(at, tokens)
            shared = min(len(same), len(tokens))
            assert same[:shared] == tokens[:shared]
            seen[at] = max(same, tokens, key=len)
            turn += 1
            if turn % 10 == 0:
                gc.collect()
    assert len(seen) == 5


# ---- what shows a step ---------------------------------------------------------------------------


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


def test_steps_that_are_not_captured_may_alternate(tiny_bundle: Bundle, opened: Open) -> None:
    with opened(tiny_bundle) as plain, opened(tiny_bundle, keep_tensors=True) as keeping:
        for rows in (5, 17, 5, 1, 17):
            got, want = (step(engine, TOKENS[:rows], 0) for engine in (keeping, plain))
            assert bits(got) == bits(want), rows


def test_a_profile_times_every_node(engine: CudaEngine, tiny_bundle: Bundle) -> None:
    state = ReplayState(5, 5, engine.segment, "verify")
    window = causal_window(TOKENS[:5], 0, [], 5, 5, 5)
    want = bits(engine.replay(state, window))
    times = engine.profile(state, window)
    assert [node for node, _ in times] == tiny_bundle.nodes("verify")
    assert all(nanoseconds > 0 for _, nanoseconds in times)
    assert bits(engine.replay(state, window)) == want


@pytest.mark.gpu
def test_verify_agrees(bundle: Bundle) -> None:
    """Each operator against its reference body, inside steps of the engine."""
    reports = {report.engine: report for report in verify(bundle, windows=8).engines}
    assert reports["cuda"].fault is None and reports["cuda"].operators > 0


# ---- what is refused -----------------------------------------------------------------------------


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
