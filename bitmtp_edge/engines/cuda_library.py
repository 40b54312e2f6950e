"""The CUDA library through ctypes: operators, promotion and staging, enqueued on a stream.

Every call returns before its work is done.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p
from typing import Any

from ..errors import UserError
from . import abi
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
    "bitmtp_cuda_abi_version": (c_int32, ()),
    **{name: (c_int32, (c_void_p, c_void_p)) for name in _LAUNCHERS.values()},
    **{name: (c_int64, (c_void_p,)) for name in _WORKSPACES.values()},
    "bitmtp_cuda_promote": (
        c_int32,
        (POINTER(abi.KVPlane), c_int32, c_int64, POINTER(c_int32), c_int32, c_int64, c_void_p),
    ),
    "bitmtp_cuda_stage": (c_int32, (c_void_p, c_void_p)),
}

INVALID = 1  # cudaErrorInvalidValue, also of a record that an operator does not take
NO_KERNEL_IMAGE = 209
_ERRORS = {
    2: "out of memory",
    35: "the driver is older than the CUDA release that the library was built with: update it",
    100: "no CUDA device",
    NO_KERNEL_IMAGE: "the library was not built for this GPU",
    700: "a kernel read or wrote outside its memory",
    719: "a kernel failed",
}


class LaunchError(UserError):
    """The library refused a call. ``code``: its cudaError_t."""

    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error {code} ({_ERRORS.get(code, 'see cudaError_t')})")
        self.code = code


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


class CudaLibrary:
    """The operators on the current device. ``stream`` is a cudaStream_t; every address that a
    record holds is the device's."""

    def __init__(self) -> None:
        self._library = _library(os.environ.get(PATH_VARIABLE))

    def launch(self, op: int, record: ctypes.Structure, stream: int) -> None:
        """Enqueues operator ``op``. LaunchError, with code INVALID for a record that it does not
        take."""
        _check(getattr(self._library, _LAUNCHERS[op])(byref(record), stream))

    def workspace_bytes(self, op: int, record: ctypes.Structure) -> int:
        """Bytes that ``record.workspace`` must have."""
        return int(getattr(self._library, _WORKSPACES[op])(byref(record)))

    def promote(
        self, planes: Any, count: int, capacity: int, rows: Sequence[int], at: int, stream: int
    ) -> None:
        """Enqueues that history row ``at + i`` of each of the ``count`` ``planes``, an array of
        :class:`abi.KVPlane`, takes workspace row ``rows[i]``."""
        indices = (c_int32 * len(rows))(*rows)
        _check(
            self._library.bitmtp_cuda_promote(
                planes, count, capacity, indices, len(rows), at, stream
            )
        )

    def stage(self, args: abi.StageArgs, stream: int) -> None:
        """Enqueues the making of a window's inputs."""
        _check(self._library.bitmtp_cuda_stage(byref(args), stream))


@functools.cache
def _library(path: str | None) -> ctypes.CDLL:
    return load("libbitmtp_cuda.so", "CUDA", _FUNCTIONS, BUILD, path)


def _check(code: int) -> None:
    if code != 0:
        raise LaunchError(code)
