"""A real GPU for the stand-in of TensorRT: a node runs by our CUDA kernels, or as a plugin.

pycuda and the plugin library are the real ones as well; so all of engine ``tensorrt`` is, but
TensorRT.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_size_t, c_ubyte, c_uint64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING

from bitmtp_edge.engines import cuda_library
from bitmtp_edge.engines.arena import ALIGNMENT
from bitmtp_edge.engines.cuda_library import CudaLibrary
from bitmtp_edge.engines.gpu_library import StepLibrary

from ..tensorrt.conformance import Plugin, Session
from .gpu import KernelRunner

if TYPE_CHECKING:
    from .network_step import NetworkStep

POISON = 0xFF


class RealGpu(CudaLibrary):
    """path: of the plugin library, which exports the CUDA library's functions too."""

    def __init__(self, path: Path) -> None:
        StepLibrary.__init__(self, cuda_library._library(str(path)))
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._driver.cuMemsetD8Async.argtypes = (c_uint64, c_ubyte, c_size_t, c_void_p)

    def require_current(self) -> None:
        context = c_void_p()
        assert self._driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
        assert context.value, "no context is current"

    def check(self, address: int, size: int) -> None:
        assert address % ALIGNMENT == 0, f"{address:#x} is no multiple of {ALIGNMENT}"

    def capturing(self, handle: int) -> bool:
        status = ctypes.c_int(0)
        assert self._driver.cuStreamIsCapturing(c_void_p(handle), ctypes.byref(status)) == 0
        return status.value != 0

    def poison(self, address: int, size: int, handle: int) -> None:
        assert self._driver.cuMemsetD8Async(address, POISON, size, handle) == 0

    def runner(self, step: NetworkStep) -> KernelRunner | PluginRunner:
        return KernelRunner(self, step)


class PluginGpu(RealGpu):
    """Nodes are plugins, made of the fields that the network has for them and taken through
    TensorRT's order of calls by the program at ``conformance``."""

    def __init__(self, path: Path, conformance: str) -> None:
        super().__init__(path)
        self._session = Session(conformance, str(path))

    def runner(self, step: NetworkStep) -> PluginRunner:
        return PluginRunner(self._session, step)


class PluginRunner:
    """A step by plugin objects alone."""

    def __init__(self, session: Session, step: NetworkStep) -> None:
        self._session = session
        self._steps: list[tuple[Plugin, list[str], list[str]]] = []
        # TensorRT's parser looks an attribute up for each field of the creator, in its order.
        order = {op: [name for name, _ in fields] for op, fields in session.creators().items()}
        for node, given in zip(step.nodes, step.fields, strict=True):
            assert given.keys() == set(order[node.op]), node.name
            fields = [(name, given[name]) for name in order[node.op]]
            inputs = [name for name in node.inputs if name]
            outputs = [name for name in node.outputs if name]
            specs = [step.specs[name] for name in inputs]
            plugin = session.take_through(node.op, fields, specs, len(outputs))
            assert plugin.outputs == [step.specs[name] for name in outputs], node.name
            self._steps.append((plugin, inputs, outputs))
        self.workspace_bytes = max(plugin.workspace_bytes for plugin, _, _ in self._steps)

    def enqueue(self, addresses: Mapping[str, int], workspace: int, handle: int) -> None:
        for plugin, inputs, outputs in self._steps:
            read, written = ([addresses[name] for name in names] for names in (inputs, outputs))
            assert plugin.enqueue(read, written, workspace, handle) == 0, self._session.log()

    def __del__(self) -> None:
        for plugin, _, _ in self._steps:
            plugin.release()
