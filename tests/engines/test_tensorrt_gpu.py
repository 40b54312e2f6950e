"""Engine ``tensorrt`` on a GPU, with pycuda, our plugin library and PyTorch beside it, all real; a
stand-in for TensorRT alone runs the nodes. What it gives is what engine ``cuda`` gives."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from bitmtp_edge.building.plans import build_plans
from bitmtp_edge.building.states import chosen_states
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    Hybrid,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import Engine, ReplayState, StagedWindow
from bitmtp_edge.engines.cuda import CudaEngine
from bitmtp_edge.engines.pycuda_device import PycudaDevice
from bitmtp_edge.engines.tensorrt import TensorRTEngine
from bitmtp_edge.engines.tensorrt_library import PATH_VARIABLE
from bitmtp_edge.engines.tensorrt_probe import unavailable

from ..damage import link_copy
from .cuda_steps import TOKENS, decode
from .steps import output_bits, step

pytestmark = pytest.mark.gpu

CONFORMANCE = "BITMTP_TENSORRT_CONFORMANCE"


@pytest.fixture(params=["kernels", "plugins"])
def tensorrt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT's stand-in launches our kernels, or enqueues our plugins."""
    path, conformance = (os.environ.get(name) for name in (PATH_VARIABLE, CONFORMANCE))
    if not path or not conformance:
        pytest.skip(f"{PATH_VARIABLE}, {CONFORMANCE} are not set: tools/test_gpu.sh builds both")
    pytest.importorskip("pycuda", reason="pycuda is not installed: pip install pycuda")
    from ..fakes.board import forget_tensorrt
    from ..fakes.fake_tensorrt import FakeTensorRT
    from ..fakes.real_gpu import PluginGpu, RealGpu

    forget_tensorrt()
    library = Path(path)
    gpu = RealGpu(library) if request.param == "kernels" else PluginGpu(library, conformance)
    trt = FakeTensorRT(gpu, library)
    monkeypatch.setitem(sys.modules, "tensorrt", trt.module())


@pytest.fixture
def built(bundle: Bundle, tensorrt: None, tmp_path: Path) -> Bundle:
    """A bundle of each kind, with the engines of greedy decoding."""
    copy = Bundle.open(link_copy(bundle.path, tmp_path / "built"))
    build_plans(copy, chosen_states(copy), lambda line: None)
    return copy


def policies(bundle: Bundle) -> list[Policy]:
    if bundle.decoding.block:
        return [AutoRegressive(), SpeculativeOnly(4), Hybrid(4, 0.3, 2)]
    return [AutoRegressive(), NestedSelfSpeculation(2)]


def test_it_works_here(tensorrt: None) -> None:
    assert unavailable() is None


def test_the_same_tokens_as_engine_cuda(built: Bundle) -> None:
    """While both are open, in one context and one process."""
    with CudaEngine(built) as cuda, TensorRTEngine(built) as engine:
        for policy in policies(built):
            want = decode(cuda, built, policy, 60)
            assert decode(engine, built, policy, 60) == want
            assert decode(cuda, built, policy, 60) == want


def test_every_output_of_every_state(built: Bundle) -> None:
    with CudaEngine(built) as cuda, TensorRTEngine(built) as engine:
        fill(cuda), fill(engine)
        for state in ReplayStates.of(built).all():
            if state.segment != engine.segment:
                continue
            heads = state.outputs
            tokens = TOKENS[: 20 + state.width]
            window = causal_window(list(tokens), 20, (), state.width, heads, heads)
            for _ in range(3):  # enqueued, then the captured graph
                want, got = cuda.replay(state, window), engine.replay(state, window)
                for row in range(heads):
                    assert output_bits(got, row) == output_bits(want, row), state


def fill(engine: Engine) -> None:
    """20 rows of history."""
    state = ReplayState(5, 1, engine.segment, "verify")
    for at in range(0, 20, 5):
        engine.replay(state, causal_window(list(TOKENS[: at + 5]), at, (), 5, 1, 1))
        engine.promote(range(5), at)


def test_a_long_reply_grows_its_segment(built: Bundle) -> None:
    first = built.replay.segments[0]
    policy = policies(built)[1]
    with CudaEngine(built) as cuda, TensorRTEngine(built) as engine:
        want = decode(cuda, built, policy, first + 30)
        assert decode(engine, built, policy, first + 30) == want
        assert engine.segment == built.replay.segments[-1]


def test_a_staged_window(tensorrt: None, board_bundle: Bundle) -> None:
    bundle = board_bundle
    build_plans(bundle, chosen_states(bundle, ["*-c512"]), lambda line: None)
    states = ReplayStates.of(bundle)
    with TensorRTEngine(bundle) as engine:
        draft = states.state("draft", 4, 4, engine.segment)
        verify = states.state("verify", 5, 5, engine.segment)
        window = causal_window([TOKENS[0], -1, -1, -1], 0, (), draft.width, 4, draft.outputs)
        for _ in range(3):
            output = engine.start(draft, window)
            staged = engine.stage(verify, StagedWindow(TOKENS[:1], 0, output, 4, 5))
            assert staged is not None
            got = staged.start()
            ids = [TOKENS[0], *(int(token) for token in output.token_ids[:4, 0])]
            want = engine.replay(verify, causal_window(ids, 0, (), verify.width, 5, verify.outputs))
            assert np.array_equal(got.token_ids, want.token_ids)
            assert np.array_equal(got.probability, want.probability)


def test_torch_goes_on_beside_it(tensorrt: None, board_bundle: Bundle) -> None:
    """The context is shared: neither disturbs the other, before, meanwhile or after."""
    import torch

    build_plans(board_bundle, chosen_states(board_bundle, ["verify-m1-*-c512"]), lambda line: None)
    kept = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    total = float(kept.double().sum())
    taken = []
    for _ in range(3):
        with TensorRTEngine(board_bundle) as engine:
            for _ in range(20):
                step(engine, TOKENS[:1], 0, logits=False)
                assert float(kept.double().sum()) == total
        torch.cuda.synchronize()
        assert float(kept.double().sum()) == total
        free, whole = torch.cuda.mem_get_info()
        taken.append(whole - free)
    assert taken[2] <= taken[0] + (4 << 20), "memory of closed engines is kept"


def test_threads_of_their_own(tensorrt: None, board_bundle: Bundle) -> None:
    """And a context that comes and goes."""
    build_plans(board_bundle, chosen_states(board_bundle, ["*-c512"]), lambda line: None)
    found: list[list[int]] = []

    def reply() -> None:
        with TensorRTEngine(board_bundle) as engine:
            found.append(decode(engine, board_bundle, AutoRegressive(), 8))

    for _ in range(2):
        thread = threading.Thread(target=reply)
        thread.start()
        thread.join()
    reply()
    assert len(found) == 3 and found[0] == found[1] == found[2]


def test_memory_that_is_not_there(tensorrt: None) -> None:
    device = PycudaDevice()
    with device.current():
        with pytest.raises(Exception, match=r"no GPU memory for it \("):
            device.allocate(1 << 44, "it")
        assert device.free_memory() > 0
    device.close()
