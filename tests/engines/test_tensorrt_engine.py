"""Engine ``tensorrt`` over stand-ins whose plugins are the CPU's kernels: the same bits, and who
keeps what, shares what and lets go of what."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bitmtp_edge.building.plans import build_plans
from bitmtp_edge.building.states import chosen_states
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
from bitmtp_edge.engines import gpu_weights
from bitmtp_edge.engines.base import Engine, NotBuilt, ReplayState, StagedWindow
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.engines.pycuda_device import PycudaDevice
from bitmtp_edge.engines.tensorrt import TensorRTEngine
from bitmtp_edge.errors import UserError
from bitmtp_edge.footprint import footprint

from ..damage import link_copy
from ..fakes.board import Board
from .cuda_steps import TOKENS, decode
from .steps import output_bits, step


def build(bundle: Bundle, *patterns: str) -> None:
    build_plans(bundle, chosen_states(bundle, patterns), lambda line: None)


@pytest.fixture(params=["tiny_bundle", "fp16_bundle", "tiny_ternary_bundle"])
def built(request: pytest.FixtureRequest, board: Board, tmp_path: Path) -> Bundle:
    """A bundle of each kind, with all engines of its first segment."""
    source: Bundle = request.getfixturevalue(request.param)
    bundle = Bundle.open(link_copy(source.path, tmp_path / "built"))
    build(bundle, "*-c512*")
    board.restart()
    return bundle


@pytest.fixture
def built_ternary(board: Board, board_bundle: Bundle) -> Bundle:
    build(board_bundle)
    board.restart()
    return board_bundle


def policies(bundle: Bundle) -> list[Policy]:
    drafting: list[Policy] = [NestedSelfSpeculation(2)]
    if bundle.decoding.block:
        drafting = [SpeculativeOnly(4), Hybrid(4, 0.3, 2)]
    return [AutoRegressive(), *drafting]


def test_the_same_tokens_as_the_cpu(built: Bundle, board: Board) -> None:
    with CpuEngine(built, threads=1) as cpu, TensorRTEngine(built) as engine:
        for policy in policies(built):
            assert decode(engine, built, policy, 50) == decode(cpu, built, policy, 50)
        assert engine.device == "Fake Orin"
    board.at_rest()


def test_every_output_of_every_state_is_the_cpus(built: Bundle) -> None:
    """Of both roles, in the first segment, logits too; spare scratch memory holds no number."""
    states = ReplayStates.of(built)
    first = built.replay.segments[0]
    history = 20
    kv4 = 12 if built.model.kv == "nested" else 0
    with CpuEngine(built, threads=1) as cpu, TensorRTEngine(built) as engine:
        for each in (cpu, engine):
            play(each, TOKENS[:history], width=5)
        for state in (*states.all(), *states.all(logits=True)):
            if state.segment != first:
                continue
            window = causal_window(
                TOKENS[: history + state.width],
                history,
                (),
                state.width,
                state.outputs,
                state.outputs,
                kv4 if state.role == "draft" else 0,
            )
            want, got = cpu.replay(state, window), engine.replay(state, window)
            for row in range(state.outputs):
                assert output_bits(got, row) == output_bits(want, row), state


def play(engine: Engine, tokens: list[int], width: int) -> None:
    """Fills history by steps of greedy decoding's own states."""
    for at in range(0, len(tokens), width):
        state = ReplayState(width, 1, engine.segment, "verify")
        engine.replay(state, causal_window(tokens[: at + width], at, (), width, 1, 1))
        engine.promote(range(width), at)


def test_a_long_reply_grows_its_segment(built_ternary: Bundle, board: Board) -> None:
    first, *_, last = built_ternary.replay.segments
    with CpuEngine(built_ternary, threads=1) as cpu, TensorRTEngine(built_ternary) as engine:
        policy = SpeculativeOnly(4)
        count = first + 40
        want = decode(cpu, built_ternary, policy, count)
        assert decode(engine, built_ternary, policy, count) == want
        assert engine.segment == last
        engine.grow(first, 0)
        assert decode(engine, built_ternary, policy, 30) == want[:30]
    board.at_rest()


def test_sampling(built: Bundle) -> None:
    sampling = SamplingParams(0.8, 20, 0.9, 11)
    replies = []
    with CpuEngine(built, threads=1) as cpu, TensorRTEngine(built) as engine:
        for each in (cpu, engine):
            states, policy = ReplayStates.of(built), policies(built)[1]
            decoder = Decoder(each, states, policy, sampling=sampling)
            decoder.prefill(TOKENS[:12])
            for _ in decoder.iterations(60):
                pass
            replies.append(decoder.prefix.tokens)
    assert replies[0] == replies[1]


# ---- a step -------------------------------------------------------------------------------------


def test_a_state_is_enqueued_once_then_captured_then_launched(
    built_ternary: Bundle, board: Board
) -> None:
    with TensorRTEngine(built_ternary) as engine:
        for count in range(1, 4):
            step(engine, TOKENS[:1], 0, logits=False)
            assert (board.trt.contexts, board.trt.executed) == (1, 2)  # run, and captured
            assert len(board.plugins.graphs) == 1
            nodes = len(built_ternary.nodes("verify"))
            assert board.gpu.launches == count * nodes
        step(engine, TOKENS[:5], 0, logits=False)
        assert (board.trt.contexts, board.trt.executed) == (2, 4)
    board.at_rest()


def test_nothing_runs_before_it_is_waited_for(built_ternary: Bundle, board: Board) -> None:
    """The host goes on: it may have the next window made of what it has not read."""
    states = ReplayStates.of(built_ternary)
    with TensorRTEngine(built_ternary) as engine, CpuEngine(built_ternary, threads=1) as cpu:
        draft = states.state("draft", 4, 4, engine.segment)
        verify = states.state("verify", 5, 5, engine.segment)
        ids = [TOKENS[0], -1, -1, -1]
        window = causal_window(ids, 0, (), draft.width, 4, draft.outputs)
        expected = cpu.replay(draft, window)
        drafted = [int(token) for token in expected.token_ids[:4, 0]]
        whole = causal_window([TOKENS[0], *drafted], 0, (), verify.width, 5, verify.outputs)
        want = cpu.replay(verify, whole)

        output = engine.start(draft, window)
        staged = engine.stage(verify, StagedWindow(TOKENS[:1], 0, output, 4, 5))
        assert staged is not None and board.plugins.staged == 1
        assert board.gpu.launches == 0
        got = staged.start()
        assert np.array_equal(got.token_ids, want.token_ids)
        assert np.array_equal(output.token_ids, expected.token_ids)


def test_an_output_outlives_its_engine(built_ternary: Bundle, board: Board) -> None:
    with TensorRTEngine(built_ternary) as engine, CpuEngine(built_ternary, threads=1) as cpu:
        state = ReplayState(1, 1, engine.segment, "verify")
        window = causal_window(TOKENS[:1], 0, (), 1, 1, 1)
        output, want = engine.start(state, window), cpu.replay(state, window)
    assert output_bits(output, 0) == output_bits(want, 0)
    board.at_rest()


def test_two_sequences_take_turns(built_ternary: Bundle) -> None:
    """Captured graphs serve both, whatever is collected between."""
    with TensorRTEngine(built_ternary) as engine:
        policy = SpeculativeOnly(4)
        want = [decode(engine, built_ternary, policy, 20, at) for at in (0, 300)]
        for _ in range(2):
            gc.collect()
            assert [decode(engine, built_ternary, policy, 20, at) for at in (0, 300)] == want


def test_another_thread(built_ternary: Bundle, board: Board) -> None:
    found: list[list[int]] = []
    with TensorRTEngine(built_ternary) as engine:
        policy = AutoRegressive()
        thread = threading.Thread(
            target=lambda: found.append(decode(engine, built_ternary, policy, 10))
        )
        thread.start()
        thread.join()
        assert found == [decode(engine, built_ternary, policy, 10)]
    board.at_rest()


# ---- memory -------------------------------------------------------------------------------------


def test_memory(built_ternary: Bundle, board: Board) -> None:
    """One copy of the weights and one scratch block, whatever the number of engines."""
    with TensorRTEngine(built_ternary) as engine:
        decode(engine, built_ternary, SpeculativeOnly(4), 30)
        told = engine.memory()
        assert board.trt.contexts > 5
        assert told["weights"] == built_ternary.manifest.files["weights.bin"].bytes
        assert told["device"] == board.gpu.held
        states = chosen_states(built_ternary, ["*-c512"])
        predicted = footprint(built_ternary, states)
        assert (told["weights"], told["kv"]) == (predicted.weights, predicted.kv)
        apart = sum(told.values()) - told["device"]
        assert apart <= told["device"] < apart + 16384  # inputs and outputs
    board.at_rest()


def test_weights_go_through_a_small_page_locked_block(
    built_ternary: Bundle, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    pinned = PycudaDevice.pinned

    def watched(self: PycudaDevice, size: int) -> object:
        sizes.append(size)
        return pinned(self, size)

    monkeypatch.setattr(PycudaDevice, "pinned", watched)
    monkeypatch.setattr(gpu_weights, "BOUNCE", 4096 + 4)
    with TensorRTEngine(built_ternary) as engine, CpuEngine(built_ternary, threads=1) as cpu:
        policy = AutoRegressive()
        assert decode(engine, built_ternary, policy, 10) == decode(cpu, built_ternary, policy, 10)
    assert sizes[0] == 4100


def test_weights_that_became_shorter(built_ternary: Bundle, board: Board) -> None:
    path = built_ternary.path / "weights.bin"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1000])
    with pytest.raises(UserError, match=r"weights.bin has become shorter: copy the bundle again"):
        TensorRTEngine(built_ternary)
    board.at_rest()


def test_no_memory(built_ternary: Bundle, board: Board) -> None:
    board.gpu.total = 600_000
    told = r"no GPU memory for .* \(\d+ MiB; \d+ of 1 MiB are free\): close what else uses it"
    with pytest.raises(UserError, match=told):
        TensorRTEngine(built_ternary)
    board.at_rest()


def test_a_device_of_somebody_elses_stays_open(built_ternary: Bundle, board: Board) -> None:
    device = PycudaDevice()
    with TensorRTEngine(built_ternary, device=device) as engine:
        step(engine, TOKENS[:1], 0, logits=False)
    assert board.gpu.retained == 1 and board.gpu.held == 0
    engine.close()  # again, and nothing happens
    device.close()
    device.close()
    board.at_rest()


def fail_the_wait(board: Board) -> None:
    board.driver.failing = "cuStreamSynchronize failed: illegal address"


def fail_the_launch(board: Board) -> None:
    board.plugins.failing = 700


def refuse_the_step(board: Board) -> None:
    board.trt.refusal["execute"] = "a plugin failed"


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (fail_the_wait, "a step failed on the GPU: cuStreamSynchronize failed: illegal address"),
        (fail_the_launch, "CUDA error 700 "),
        (
            refuse_the_step,
            r"TensorRT does not run the engine \(a plugin failed\): .*verify-m1-h1-c",
        ),
    ],
)
def test_a_step_that_fails(
    built_ternary: Bundle, board: Board, fault: Callable[[Board], None], told: str
) -> None:
    """One line, and all is let go of."""
    with TensorRTEngine(built_ternary) as engine:
        if fault is not refuse_the_step:
            step(engine, TOKENS[:1], 0, logits=False)
        fault(board)
        with pytest.raises(UserError, match=told):
            step(engine, TOKENS[:1], 0, logits=False)
        board.plugins.failing = 0
    board.at_rest()


def test_a_close_that_fails_lets_go_as_well(built_ternary: Bundle, board: Board) -> None:
    engine = TensorRTEngine(built_ternary)
    step(engine, TOKENS[:1], 0, logits=False)
    fail_the_wait(board)
    with pytest.raises(UserError, match="a step failed on the GPU"):
        engine.close()
    board.at_rest()


def test_tensorrt_that_does_not_start(built_ternary: Bundle, board: Board) -> None:
    board.trt.refusal["start"] = "no CUDA"
    with pytest.raises(UserError, match=r"^TensorRT does not start \(no CUDA\)$"):
        TensorRTEngine(built_ternary)
    board.at_rest()


@pytest.mark.parametrize("what", ["context", "address"])
def test_tensorrt_refuses(built_ternary: Bundle, board: Board, what: str) -> None:
    kind = {"context": "makes no execution context", "address": "takes no address for 'token_ids'"}
    board.trt.refusal[what] = "so it is"
    build = f"bitmtp-edge build {built_ternary.path} --target tensorrt"
    command = f"build it again with  rm .*verify-m1-h1-c512.plan && {build}"
    told = rf"TensorRT {kind[what]} \(so it is\): .*verify-m1-h1-c512.plan: {command}"
    with TensorRTEngine(built_ternary) as engine, pytest.raises(UserError, match=told):
        step(engine, TOKENS[:1], 0, logits=False)
    board.at_rest()


def test_a_state_that_was_not_built(board: Board, board_bundle: Bundle) -> None:
    build(board_bundle, "verify-m1-h1-c512")
    with TensorRTEngine(board_bundle) as engine:
        step(engine, TOKENS[:1], 0, logits=False)
        with pytest.raises(NotBuilt) as caught:
            step(engine, TOKENS[:1], 0)
        assert str(caught.value) == (
            f"{board_bundle.path} has no engine verify-m1-h1-c512-logits for TensorRT: build it "
            f"with  bitmtp-edge build {board_bundle.path} --target tensorrt --states "
            "verify-m1-h1-c512-logits"
        )
        step(engine, TOKENS[:1], 0, logits=False)
    board.at_rest()
