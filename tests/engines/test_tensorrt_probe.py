"""What is said where engine ``tensorrt`` cannot run; where what it binds lies."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bitmtp_edge.engines import gpu_probe, tensorrt_library, tensorrt_probe
from bitmtp_edge.engines.gpu_kv import GpuKVBuffer
from bitmtp_edge.engines.pycuda_device import PycudaDevice
from bitmtp_edge.engines.tensorrt_api import release
from bitmtp_edge.engines.tensorrt_probe import unavailable
from bitmtp_edge.errors import UserError
from bitmtp_edge.footprint import kv_bytes
from bitmtp_edge.host import read_host

from ..fakes.board import Board
from .host_device import HostDevice, HostLibrary


def reason() -> str:
    found = unavailable()
    assert found is not None and "\n" not in found
    return found


def test_a_machine_where_it_works(board: Board) -> None:
    assert unavailable() is None
    assert board.trt.loaded == [str(board.library)]
    board.at_rest()
    assert unavailable() is None  # again: TensorRT has the library already


def test_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of TensorRT is loaded there."""
    monkeypatch.setattr(tensorrt_probe, "driver_devices", lambda: 0)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    assert reason() == "no CUDA device: the NVIDIA driver is missing, or shows none"


def test_no_device_on_a_jetson(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the usual cause is an account outside of the groups that own the GPU's files."""
    monkeypatch.setattr(tensorrt_probe, "driver_devices", lambda: 0)
    here = replace(read_host(), l4t="36.4.3")
    monkeypatch.setattr(gpu_probe, "read_host", lambda: here)
    assert "groups video and render: sudo usermod -aG video,render $USER" in reason()


@pytest.mark.parametrize("size", [-5, 10**30])
def test_a_size_that_pycuda_cannot_count(board: Board, size: int) -> None:
    device = PycudaDevice()
    with device.current(), pytest.raises(UserError, match=f"^{size} bytes for a test failed"):
        device.allocate(size, "a test")
    device.close()
    board.at_rest()


def test_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tensorrt_probe, "driver_devices", lambda: 1)
    monkeypatch.setenv(tensorrt_library.PATH_VARIABLE, str(tmp_path / "none.so"))
    assert reason().startswith("the TensorRT plugin library does not load (")


def test_a_library_of_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_probe, "driver_devices", lambda: 1)
    monkeypatch.setenv(tensorrt_library.PATH_VARIABLE, "libm.so.6")
    assert "undefined symbol: bitmtp_cuda_abi_version" in reason()


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("tensorrt", "TensorRT's Python package does not load (import of tensorrt halted"),
        ("pycuda.driver", "pycuda is not installed: install the extra 'jetson'"),
    ],
)
def test_no_package(board: Board, monkeypatch: pytest.MonkeyPatch, module: str, told: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert reason().startswith(told)


def test_pycuda_of_another_cuda(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise ImportError("undefined symbol: cuArrayCreate_v2")

    monkeypatch.delitem(sys.modules, "pycuda.driver")
    monkeypatch.setitem(sys.modules, "pycuda", Broken("pycuda"))
    told = reason()
    assert told.startswith("pycuda does not load (undefined symbol: cuArrayCreate_v2): it was ")
    assert told.endswith("pip install --force-reinstall --no-deps --no-cache-dir pycuda")


@pytest.mark.parametrize(
    ("capability", "failing", "told"),
    [
        ((7, 2), 0, "Fake Orin has compute capability 7.2: expected 8.0 (Ampere) or newer"),
        (
            (8, 7),
            209,
            "the TensorRT plugin library has no code for Fake Orin (compute capability 8.7): build "
            "it with  pip install . -C cmake.define.BITMTP_TENSORRT=ON -C "
            "cmake.define.CMAKE_CUDA_ARCHITECTURES=87-real",
        ),
        ((8, 7), 35, "CUDA error 35 (the driver is older than the CUDA release that the library"),
    ],
)
def test_a_gpu_that_the_library_is_not_for(
    board: Board, capability: tuple[int, int], failing: int, told: str
) -> None:
    board.driver.capability, board.plugins.failing = capability, failing
    assert reason().startswith(told)
    board.at_rest()


def test_tensorrt_that_does_not_load_the_plugins(board: Board) -> None:
    board.trt.library = Path("another.so")
    assert reason().startswith(f"TensorRT does not load {board.library}: ")
    board.at_rest()


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("10.3.0.30", (10, 3)), ("11.4.0.106", (11, 4)), ("8.6", (8, 6)), ("dev", (0, 0))],
)
def test_releases(version: str, numbers: tuple[int, int]) -> None:
    assert release(version) == numbers


@pytest.mark.parametrize("capacity", [512, 500, 1, 1000])
def test_every_kv_binding_is_aligned(tiny_bundle: Any, capacity: int) -> None:
    """Whatever the segment's size is: TensorRT takes no other addresses."""
    device = HostDevice()
    width = tiny_bundle.replay.max_width
    buffer = GpuKVBuffer(tiny_bundle.nodes("verify"), capacity, width, device)
    assert buffer.block.size == kv_bytes(tiny_bundle, capacity)
    for array in (*buffer.history.values(), *buffer.workspace.values()):
        assert array.address % 256 == 0
        assert array.shape[0] in (capacity, width)
    name = next(iter(buffer.workspace))
    history = next(iter(buffer.history.values()))
    rows = buffer.workspace[name]
    at = rows.address - buffer.block.address
    row_bytes = (history.shape[1]) * 4
    buffer.block.owner[at + 3 * row_bytes : at + 4 * row_bytes] = 7
    buffer.promote([3], capacity - 1, HostLibrary(device))
    last = history.address - buffer.block.address + (capacity - 1) * row_bytes
    assert (device.download(buffer.block, last, row_bytes) == 7).all()
