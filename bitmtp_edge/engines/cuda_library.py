"""The CUDA library through ctypes: the operators, beside what every library of a GPU has."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import byref, c_int32, c_int64, c_void_p

from . import abi
from .gpu_library import STEP_FUNCTIONS, StepLibrary, check
from .native_library import Functions, load

PATH_VARIABLE = "BITMTP_CUDA_LIBRARY"
BUILD = "build it with  pip install . -C cmake.define.BITMTP_CUDA=ON"

_LAUNCHERS = {
    abi.TOKEN_EMBEDDING: "bitmtp_cuda_token_embedding",
    abi.RMS_NORM_QUANT: "bitmtp_cuda_rms_norm_quant",
    abi.TERNARY_LINEAR: "bitmtp_cuda_ternary_linear",
    abi.DUAL_PLANE_LINEAR: "bitmtp_cuda_dual_plane_linear",
    abi.NESTED_KV_ATTENTION: "bitmtp_cuda_nested_kv_attention",
    abi.GATED_ACT_QUANT: "bitmtp_cuda_gated_act_quant",
    abi.GREEDY_HEAD: "bitmtp_cuda_greedy_head",
}
_WORKSPACES = {
    abi.NESTED_KV_ATTENTION: "bitmtp_cuda_nested_kv_attention_workspace_bytes",
    abi.GREEDY_HEAD: "bitmtp_cuda_greedy_head_workspace_bytes",
}
_FUNCTIONS: Functions = {
    **STEP_FUNCTIONS,
    **{name: (c_int32, (c_void_p, c_void_p)) for name in _LAUNCHERS.values()},
    **{name: (c_int64, (c_void_p,)) for name in _WORKSPACES.values()},
}


def driver_devices() -> int:
    """How many CUDA devices the driver shows, asked without loading a GPU package."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(byref(count)) != 0:
        return 0
    return count.value


class CudaLibrary(StepLibrary):
    """The operators on the current device."""

    def __init__(self) -> None:
        super().__init__(_library(os.environ.get(PATH_VARIABLE)))

    def launch(self, op: int, record: ctypes.Structure, stream: int) -> None:
        """Enqueues operator ``op``. LaunchError, with code INVALID for a record that it does not
        take."""
        check(getattr(self._library, _LAUNCHERS[op])(byref(record), stream))

    def workspace_bytes(self, op: int, record: ctypes.Structure) -> int:
        """Bytes that ``record.workspace`` must have."""
        return int(getattr(self._library, _WORKSPACES[op])(byref(record)))


@functools.cache
def _library(path: str | None) -> ctypes.CDLL:
    return load("libbitmtp_cuda.so", "CUDA", _FUNCTIONS, BUILD, path)
