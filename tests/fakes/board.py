"""A machine with a GPU, pycuda, TensorRT and our plugins, all stand-ins, in the place of none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bitmtp_edge.engines import (
    pycuda_device,
    registry,
    tensorrt_api,
    tensorrt_library,
    tensorrt_manifest,
    tensorrt_probe,
)
from bitmtp_edge.engines.registry import ENGINES
from bitmtp_edge.host import read_host

from .fake_plugins import FakePlugins
from .fake_pycuda import FakeDriver
from .fake_tensorrt import FakeTensorRT
from .gpu import FakeGpu

_CACHES: tuple[Any, ...] = (
    tensorrt_api.import_tensorrt,
    tensorrt_api.error_log,
    tensorrt_api._load_plugins,
)


def forget_tensorrt() -> None:
    """What a process keeps of TensorRT is gone."""
    for cached in _CACHES:
        cached.cache_clear()


class Board:
    """Changing ``trt.version``, ``l4t`` or the plugin library's file takes :meth:`restart`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.gpu = FakeGpu()
        self.driver = FakeDriver(self.gpu)
        self.library = folder / "libbitmtp_tensorrt.so"
        self.library.write_bytes(b"plugins, first build")
        self.trt = FakeTensorRT(self.gpu, self.library)
        self.l4t: str | None = "36.4.3"
        self.available: int | None = None
        package = ModuleType("pycuda")
        package.__spec__ = ModuleSpec("pycuda", None)
        monkeypatch.setitem(sys.modules, "pycuda", package)
        monkeypatch.setattr(tensorrt_probe, "driver_devices", lambda: 1)
        monkeypatch.setattr(registry, "driver_devices", lambda: 1)
        for module in (pycuda_device, tensorrt_manifest):
            monkeypatch.setattr(module, "read_host", self._host)
        unavailable = tensorrt_probe.unavailable
        monkeypatch.setitem(
            ENGINES, "tensorrt", replace(ENGINES["tensorrt"], unavailable=unavailable)
        )
        self.restart()

    def restart(self) -> None:
        """A new process."""
        forget_tensorrt()
        self.trt.loaded.clear()
        self.plugins = FakePlugins(self.gpu, self.library)
        plugins: Callable[[str | None], Any] = lambda path: self.plugins  # noqa: E731
        self._monkeypatch.setattr(tensorrt_library, "_library", plugins)
        self._monkeypatch.setitem(sys.modules, "pycuda.driver", self.driver.module())
        sys.modules["pycuda"].driver = sys.modules["pycuda.driver"]  # type: ignore[attr-defined]
        self._monkeypatch.setitem(sys.modules, "tensorrt", self.trt.module())

    def _host(self) -> Any:
        return replace(read_host(), l4t=self.l4t, available=self.available)

    def at_rest(self) -> None:
        """AssertionError where something of the GPU is still held."""
        assert self.gpu.pushed == 0 and self.gpu.retained == 0
        assert self.gpu.held == 0 and not self.plugins.graphs
