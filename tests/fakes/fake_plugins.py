"""A stand-in for libbitmtp_tensorrt.so: its functions as ctypes shows them, over :class:`FakeGpu`.

What calls it is the real :class:`PluginLibrary`.
"""

from __future__ import annotations

import ctypes
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.engines import cpu_library

from ..engines.host_device import enqueued_stage
from .gpu import FakeGpu, Work

CAPTURE_INVALIDATED = 901


class FakePlugins:
    """failing: the cudaError_t that every call returns. staged, promoted: calls so far. graphs:
    those that are not destroyed."""

    def __init__(self, gpu: FakeGpu, path: Path) -> None:
        self._gpu = gpu
        self._name = str(path)  # what ctypes calls a library's path
        self.failing = 0
        self.staged = 0
        self.promoted = 0
        self.graphs: dict[int, list[Work]] = {}
        self._made = 0

    def bitmtp_tensorrt_architectures(self) -> bytes:
        return b"87-real"

    def bitmtp_cuda_promote(
        self, planes: Any, count: int, capacity: int, rows: Any, n: int, at: int, stream: int
    ) -> int:
        if self.failing:
            return self.failing
        for plane in planes:
            workspace = plane.base + capacity * plane.row_bytes
            self._gpu.check(plane.base, capacity * plane.row_bytes)
            self._gpu.check(workspace, (max(rows) + 1) * plane.row_bytes)
        call = cpu_library._library().bitmtp_cpu_promote
        self._gpu.stream(stream).enqueue(partial(call, planes, count, capacity, rows, n, at))
        self.promoted += 1
        return 0

    def bitmtp_cuda_stage(self, args: Any, stream: int) -> int:
        if self.failing:
            return self.failing
        self._gpu.stream(stream).enqueue(enqueued_stage(args._obj))
        self.staged += 1
        return 0

    def bitmtp_cuda_send(self, host: int, device: int, size: int, stream: int) -> int:
        if self.failing:
            return self.failing
        self._copy(self._gpu.bytes_at(device, size), _host_bytes(host, size), stream)
        return 0

    def bitmtp_cuda_fetch(self, device: int, host: int, size: int, stream: int) -> int:
        if self.failing:
            return self.failing
        self._copy(_host_bytes(host, size), self._gpu.bytes_at(device, size), stream)
        return 0

    def _copy(self, to: NDArray[np.uint8], source: NDArray[np.uint8], stream: int) -> None:
        self._gpu.stream(stream).enqueue(partial(np.copyto, to, source))

    # ---- graphs -------------------------------------------------------------------------------

    def bitmtp_graph_begin(self, stream: int) -> int:
        begun = self._gpu.stream(stream)
        assert begun.recording is None
        begun.recording = []
        return self.failing

    def bitmtp_graph_end(self, stream: int, graph: Any) -> int:
        ended = self._gpu.stream(stream)
        recorded, ended.recording = ended.recording, None
        assert recorded is not None
        if graph is not None:
            self._made += 1
            self.graphs[self._made] = recorded
            graph._obj.value = self._made
        return 0

    def bitmtp_graph_launch(self, graph: ctypes.c_void_p, stream: int) -> int:
        assert graph.value is not None
        for work in self.graphs[graph.value]:
            self._gpu.stream(stream).enqueue(work)
        return self.failing

    def bitmtp_graph_nodes(self, graph: ctypes.c_void_p) -> int:
        assert graph.value is not None
        return len(self.graphs[graph.value])

    def bitmtp_graph_destroy(self, graph: ctypes.c_void_p) -> None:
        if graph.value is not None:
            assert self._gpu.idle, "a graph is not destroyed while it may run"
            del self.graphs[graph.value]


def _host_bytes(address: int, size: int) -> NDArray[np.uint8]:
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
