"""A real GPU for the stand-in of TensorRT: its nodes are our CUDA kernels, from the plugin library.

pycuda and that library are the real ones as well; so all of engine ``tensorrt`` is, but TensorRT.
"""

from __future__ import annotations

import ctypes
from ctypes import c_size_t, c_ubyte, c_uint64, c_void_p
from pathlib import Path

from bitmtp_edge.engines import cuda_library
from bitmtp_edge.engines.arena import ALIGNMENT
from bitmtp_edge.engines.cuda_library import CudaLibrary
from bitmtp_edge.engines.gpu_library import StepLibrary

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
