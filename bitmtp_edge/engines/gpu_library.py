"""What the libraries of both engines on a GPU export: promotion and staging, enqueued on a stream.

Every call returns before its work is done.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p
from typing import Any

from ..errors import UserError
from . import abi
from .native_library import Functions

STEP_FUNCTIONS: Functions = {
    "bitmtp_cuda_abi_version": (c_int32, ()),
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


def check(code: int) -> None:
    """LaunchError for a cudaError_t that is none of success."""
    if code != 0:
        raise LaunchError(code)


class StepLibrary:
    """``stream`` is a cudaStream_t of the current device; every address that a record holds is the
    device's."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def promote(
        self, planes: Any, count: int, capacity: int, rows: Sequence[int], at: int, stream: int
    ) -> None:
        """Enqueues that history row ``at + i`` of each of the ``count`` ``planes``, an array of
        :class:`abi.KVPlane`, takes workspace row ``rows[i]``, which is row ``capacity + rows[i]``
        of the plane."""
        indices = (c_int32 * len(rows))(*rows)
        check(
            self._library.bitmtp_cuda_promote(
                planes, count, capacity, indices, len(rows), at, stream
            )
        )

    def stage(self, args: abi.StageArgs, stream: int) -> None:
        """Enqueues the making of a window's inputs."""
        check(self._library.bitmtp_cuda_stage(byref(args), stream))
