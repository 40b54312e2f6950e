"""What is said where the CUDA engine cannot run: one line each, with what to do."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines import abi, cuda_library, cuda_probe, gpu_library
from bitmtp_edge.engines.cuda import CudaEngine
from bitmtp_edge.engines.cuda_device import CudaDevice, _Current
from bitmtp_edge.engines.cuda_library import CudaLibrary
from bitmtp_edge.engines.gpu_library import LaunchError, StepLibrary
from bitmtp_edge.errors import UserError

from .host_device import HostDevice, HostLibrary
from .steps import step


class OutOfMemory(RuntimeError):
    pass


def fake_torch(built_for: str | None = "13.0", **changes: Any) -> SimpleNamespace:
    """As much of PyTorch as the device asks before it has memory."""

    @contextmanager
    def stream(_: object) -> Iterator[None]:
        yield

    def refuse(*_: object, **__: object) -> None:
        raise OutOfMemory("CUDA out of memory.\nTried to allocate ...")

    cuda = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_name": lambda _: "Fake 4000",
        "get_device_capability": lambda _: (8, 9),
        "get_device_properties": lambda _: SimpleNamespace(),  # an old release has no uuid there
        "Stream": lambda _: SimpleNamespace(cuda_stream=0),
        "stream": stream,
        "OutOfMemoryError": OutOfMemory,
        "mem_get_info": lambda _: (300 << 20, 8 << 30),
    }
    return SimpleNamespace(
        __version__="9.9",
        version=SimpleNamespace(cuda=built_for),
        cuda=SimpleNamespace(**{**cuda, **changes}),
        uint8=None,
        zeros=refuse,
    )


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_probe, "driver_devices", lambda: 1)


def reason() -> str:
    found = cuda_probe.unavailable()
    assert found is not None and "\n" not in found
    return found


def test_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then PyTorch, which takes seconds to load, is not asked."""
    monkeypatch.setattr(cuda_probe, "driver_devices", lambda: 0)
    monkeypatch.setattr(cuda_probe, "CudaDevice", lambda: pytest.fail("asked"))
    assert reason() == "no CUDA device: the NVIDIA driver is missing, or shows none"


@pytest.mark.usefixtures("one_device")
def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cuda_library.PATH_VARIABLE, "/nowhere/libbitmtp_cuda.so")
    assert reason().startswith("the CUDA library does not load (/nowhere/libbitmtp_cuda.so: ")
    assert reason().endswith("build it with  pip install . -C cmake.define.BITMTP_CUDA=ON")


@pytest.mark.usefixtures("one_device")
def test_a_library_of_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cuda_library.PATH_VARIABLE, "libm.so.6")
    assert "bitmtp_cuda_abi_version" in reason()


@pytest.mark.parametrize(
    ("torch", "told"),
    [
        (None, "torch is not installed: install the extra 'desktop'"),
        (
            fake_torch(built_for=None),
            "torch 9.9 is a build without CUDA: install one with it",
        ),
        (
            fake_torch(is_available=lambda: False),
            "torch 9.9 finds no CUDA device: check nvidia-smi and CUDA_VISIBLE_DEVICES",
        ),
    ],
    ids=["no torch", "a CPU build", "no device"],
)
def test_pytorch(torch: object, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_probe, "driver_devices", lambda: 1)
    monkeypatch.setattr(cuda_probe, "CudaLibrary", lambda: None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert reason().startswith(told)


class Refusing(HostLibrary):
    """Every launch ends with ``code``."""

    code = gpu_library.NO_KERNEL_IMAGE

    def stage(self, args: abi.StageArgs, stream: int) -> None:
        raise LaunchError(self.code)

    def launch(self, op: int, record: ctypes.Structure, stream: int) -> None:
        raise LaunchError(self.code)


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    ("capability", "told"),
    [
        ((9, 0), "no code for host memory (compute capability 9.0): build it with .*=90-real"),
        ((7, 5), "host memory has compute capability 7.5: expected 8.0 (Ampere) or newer"),
    ],
)
def test_a_gpu_that_the_library_is_not_for(
    capability: tuple[int, int], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = HostDevice()
    device.capability = capability
    monkeypatch.setattr(cuda_probe, "CudaDevice", lambda: device)
    monkeypatch.setattr(cuda_probe, "CudaLibrary", lambda: Refusing(device))
    start, _, end = told.partition(".*")
    assert start in reason() and reason().endswith(end)


@pytest.mark.usefixtures("one_device")
def test_a_machine_where_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    device = HostDevice()
    monkeypatch.setattr(cuda_probe, "CudaDevice", lambda: device)
    monkeypatch.setattr(cuda_probe, "CudaLibrary", lambda: HostLibrary(device))
    assert cuda_probe.unavailable() is None


def test_no_memory(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    device = CudaDevice()
    told = r"no GPU memory for the weights \(\d+ MiB; 300 of 8192 MiB are free\): close what else"
    with pytest.raises(UserError, match=told):
        CudaEngine(tiny_bundle, device=device, library=HostLibrary(HostDevice()))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (gpu_library.INVALID, r"bundle: the CUDA library does not take node 'embedding' in a "),
        (700, r"^CUDA error 700 \(a kernel read or wrote outside its memory\)$"),
        (999, r"^CUDA error 999 \(see cudaError_t\)$"),
    ],
)
def test_a_launch_that_fails(tiny_bundle: Bundle, code: int, told: str) -> None:
    device = HostDevice()
    library = Refusing(device)
    library.code = code
    with (
        CudaEngine(tiny_bundle, device=device, library=library) as engine,
        pytest.raises(UserError, match=told),
    ):
        step(engine, [1, 2], 0)


@pytest.mark.gpu
def test_the_library_is_the_right_one() -> None:
    assert cuda_probe.unavailable() is None
    assert CudaLibrary().workspace_bytes(abi.GREEDY_HEAD, abi.GreedyHeadArgs(M=1, h=1)) >= 0


def test_another_device_that_is_current_is_again_afterwards() -> None:
    seen = [3]
    cuda = SimpleNamespace(current_device=lambda: seen[-1], set_device=seen.append)
    current = _Current(cuda, 1)
    with current, current:
        assert seen == [3, 1]
    assert seen == [3, 1, 3]


@pytest.mark.parametrize("count", [1, 2])
def test_an_only_device_is_current_without_a_question(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(device_count=lambda: count))
    assert isinstance(CudaDevice().current(), _Current) is (count > 1)


def test_a_capture_that_is_interrupted_as_it_begins_is_ended() -> None:
    ended: list[object] = []

    def begin(stream: int) -> int:
        raise KeyboardInterrupt

    def end(stream: int, graph: object) -> int:
        ended.append(graph)
        return 0

    library = SimpleNamespace(bitmtp_graph_begin=begin, bitmtp_graph_end=end)
    with pytest.raises(KeyboardInterrupt):
        StepLibrary(cast(Any, library)).capture(lambda: None, 7)
    assert ended == [None]
