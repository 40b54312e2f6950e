"""The runtimes that bench compares, over a tiny bundle: the same tokens, by other means."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    ConfidenceOnly,
    Hybrid,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)
from bitmtp_edge.decode.replay_states import OneWidth, ReplayStates
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import ReplayState, StepOutput, Window
from bitmtp_edge.engines.cuda import CudaEngine
from bitmtp_edge.engines.cuda_runtimes import PrivateKVEngine, open_beside
from bitmtp_edge.engines.gpu_device import Block, Pieces
from bitmtp_edge.engines.runtimes import RUNTIMES, Runtime

from .cuda_steps import TOKENS, Open, on_host
from .host_device import HostDevice
from .steps import output_bits, play, step

PROMPT = 12
OTHERS = [name for name in RUNTIMES if name != "full"]


@pytest.fixture
def nested(tiny_bundle: Bundle, opened: Open) -> Iterator[CudaEngine]:
    with opened(tiny_bundle) as engine:
        yield engine


@pytest.fixture
def ternary(tiny_ternary_bundle: Bundle, opened: Open) -> Iterator[CudaEngine]:
    with opened(tiny_ternary_bundle) as engine:
        yield engine


def decoder(engine: CudaEngine, runtime: Runtime, policy: Policy) -> Decoder:
    states = ReplayStates if runtime.width_specialised else OneWidth
    return Decoder(engine, states.of(engine.bundle), policy)


def decode(
    engine: CudaEngine, runtime: Runtime, policy: Policy, count: int, at: int = 0
) -> list[int]:
    decoding = decoder(engine, runtime, policy)
    decoding.prefill(TOKENS[at : at + PROMPT])
    for _ in decoding.iterations(PROMPT + count):
        pass
    return decoding.prefix.tokens[PROMPT:]


def watch(engine: CudaEngine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[ReplayState, bool]]:
    """The states of steps that begin, and whether their window had been staged."""
    seen: list[tuple[ReplayState, bool]] = []
    begin = engine._begin

    def watched(state: ReplayState, window: Window | None) -> object:
        seen.append((state, window is None))
        return begin(state, window)

    monkeypatch.setattr(engine, "_begin", watched)
    return seen


# ---- the same tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "policy",
    [AutoRegressive(), SpeculativeOnly(4), Hybrid(4, 0.01, 3), Hybrid(3, 0.02, 2)],
    ids=lambda policy: policy.name,
)
def test_every_runtime_decodes_the_same(ternary: CudaEngine, name: str, policy: Policy) -> None:
    """Two sequences, so that the second finds what the first left."""
    with open_beside(ternary, RUNTIMES[name]) as other:
        for at in (0, 300):
            want = decode(ternary, RUNTIMES["full"], policy, 60, at)
            assert decode(other, RUNTIMES[name], policy, 60, at) == want


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "policy",
    [NestedSelfSpeculation(3, kv4_from_segment=1, recent_n=4), NestedSelfSpeculation(1)],
    ids=["kv4", "gamma 1"],
)
def test_nested_drafts_too(nested: CudaEngine, name: str, policy: Policy) -> None:
    """Their rows are not final: the verify step replaces history in another state's buffer."""
    want = decode(nested, RUNTIMES["full"], policy, 50)
    with open_beside(nested, RUNTIMES[name]) as other:
        assert decode(other, RUNTIMES[name], policy, 50) == want


@pytest.mark.parametrize("name", ["generic", "m1"])
def test_a_longer_segment(ternary: CudaEngine, name: str) -> None:
    """Its buffers are new, and a sequence that then returns to the shorter one finds its rows."""
    first, *_, last = ternary.bundle.replay.segments
    count = first + 30
    want = decode(ternary, RUNTIMES["full"], SpeculativeOnly(4), count)
    with open_beside(ternary, RUNTIMES[name]) as other:
        assert decode(other, RUNTIMES[name], SpeculativeOnly(4), count) == want
        assert other.segment == last
        other.grow(first, 0)
        assert decode(other, RUNTIMES[name], ConfidenceOnly(4, 0.5), 40) == decode(
            ternary, RUNTIMES["full"], ConfidenceOnly(4, 0.5), 40
        )


# ---- M1: widths ----------------------------------------------------------------------------------


def test_without_m1_decode_steps_have_one_width(
    ternary: CudaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = OneWidth.of(ternary.bundle)
    width = states.decode_width
    assert width == max(w for w in states.verify_widths if w < states.prefill_chunk)
    decoding = decoder(ternary, RUNTIMES["generic"], Hybrid(4, 0.01, 3))
    decoding.prefill(TOKENS[:PROMPT])
    seen = watch(ternary, monkeypatch)
    for _ in decoding.iterations(80):
        pass
    assert {(state.role, state.width, state.outputs) for state, _ in seen} == {
        ("draft", width, width),
        ("verify", width, width),
    }


def test_without_m1_prefill_keeps_its_chunks(
    ternary: CudaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch(ternary, monkeypatch)
    decoder(ternary, RUNTIMES["m2"], AutoRegressive()).prefill(TOKENS[:300])
    chunk = ternary.bundle.replay.max_width
    assert [state.width for state, _ in seen][:2] == [chunk, chunk]


# ---- M2: KV buffers ------------------------------------------------------------------------------


def test_without_m2_every_state_has_a_buffer(ternary: CudaEngine) -> None:
    shared = ternary.memory()["kv"]
    for name, buffers in (("m2", 1), ("m1", 3), ("generic", 2)):
        with open_beside(ternary, RUNTIMES[name]) as engine:
            one_width = not RUNTIMES[name].width_specialised
            shapes = [(17, 17), (17, 17)] if one_width else [(5, 5), (5, 1)]
            states = [ReplayState(w, h, engine.segment, "verify") for w, h in shapes]
            states += [ReplayState(w, h, engine.segment, "draft") for w, h in shapes[:1]]
            play_states(engine, states)
            assert engine.memory()["kv"] == buffers * shared, name


def play_states(engine: CudaEngine, states: list[ReplayState]) -> list[StepOutput]:
    """A token a step, in one state after another."""
    outputs = []
    for at in range(3 * len(states)):
        state = states[at % len(states)]
        window = causal_window(TOKENS[: at + 1], at, [], state.width, 1, state.outputs)
        outputs.append(engine.replay(state, window))
        engine.promote([0], at)
    return outputs


def test_a_state_finds_what_others_promoted(nested: CudaEngine) -> None:
    """Also where rows are replaced, in whatever order states come."""
    states = [
        ReplayState(width, outputs, nested.segment, role)
        for width, outputs, role in (
            (5, 5, "verify"),
            (1, 1, "draft"),
            (5, 1, "verify"),
            (3, 2, "draft"),
        )
    ]
    with nested.beside(PrivateKVEngine) as private:
        for order in (states, states[::-1], states[1:3]):
            got, want = (play_states(engine, order) for engine in (private, nested))
            assert [output_bits(o, 0) for o in got] == [output_bits(o, 0) for o in want]
        for engine in (private, nested):
            play(engine, TOKENS[:60], width=7)
            step(engine, TOKENS[100:105], 0, role="draft")
            engine.promote([4, 0, 2], 20)
        for width in (1, 2, 30, 7):
            got, want = (
                [
                    output_bits(step(engine, TOKENS[:61], 60, width=width, role=role), 0)
                    for role in ("draft", "verify")
                ]
                for engine in (private, nested)
            )
            assert got == want, width


def test_rows_are_promoted_in_any_order(nested: CudaEngine) -> None:
    tokens = TOKENS[:61]
    with nested.beside(PrivateKVEngine) as private:
        for engine in (private, nested):
            play(engine, tokens, width=20)
            step(engine, tokens, 60, width=2)  # has all there is
            step(engine, TOKENS[200:250], 30)
            engine.promote([19], 49)
            engine.promote([0, 1], 30)
        got, want = (output_bits(step(e, tokens, 60, width=2), 0) for e in (private, nested))
        assert got == want


def test_another_segment_has_its_own_buffers(ternary: CudaEngine) -> None:
    with ternary.beside(PrivateKVEngine) as engine:
        play(engine, TOKENS[:20], width=7)
        assert engine.memory()["kv"] > ternary.memory()["kv"]
        for each in (engine, ternary):
            each.grow(each.bundle.replay.segments[1], 20)
        assert engine.memory()["kv"] == ternary.memory()["kv"]


def test_only_what_lacks_is_copied(
    tiny_ternary_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second time on: not the whole history."""
    with on_host(tiny_ternary_bundle) as full, full.beside(PrivateKVEngine) as engine:
        copied: list[int] = []
        copy = full._device.copy

        def counted(source: Block, these: Pieces, to: Block, those: Pieces) -> None:
            copied.append(these.count * these.size)
            copy(source, these, to, those)

        monkeypatch.setattr(full._device, "copy", counted)
        play(engine, TOKENS[:64])
        states = [ReplayState(w, 1, engine.segment, "verify") for w in (1, 2)]
        row = sum(plane.row_bytes for plane in engine._kv._records)
        for state in states:
            step_one(engine, state, 64)
        assert sum(copied) == 2 * 64 * row
        copied.clear()
        for at in range(64, 70):
            step_one(engine, states[at % 2], at)
            engine.promote([0], at)
        assert copied == 5 * [row]  # of the row before, but the first time; all layers at once


def step_one(engine: CudaEngine, state: ReplayState, at: int) -> None:
    engine.replay(state, causal_window(TOKENS[: at + 1], at, [], state.width, 1, 1))


# ---- M3: staging ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNTIMES)
def test_only_hoisting_runtimes_stage(
    ternary: CudaEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_beside(ternary, RUNTIMES[name]) as engine:
        seen = watch(engine, monkeypatch)
        decode(engine, RUNTIMES[name], SpeculativeOnly(4), 20)
        assert any(staged for _, staged in seen) == RUNTIMES[name].hoisted


# ---- side by side --------------------------------------------------------------------------------


def test_runtimes_share_weights_and_outlive_each_other(
    tiny_ternary_bundle: Bundle, opened: Open
) -> None:
    policy = Hybrid(4, 0.01, 3)
    full = opened(tiny_ternary_bundle)
    others = [open_beside(full, RUNTIMES[name]) for name in OTHERS]
    want = decode(full, RUNTIMES["full"], policy, 30)
    if isinstance(full._device, HostDevice):
        assert full._device.allocated.count("the weights") == 1
    full.close()
    for engine, name in zip(others, OTHERS, strict=True):
        with engine:
            assert decode(engine, RUNTIMES[name], policy, 30) == want
