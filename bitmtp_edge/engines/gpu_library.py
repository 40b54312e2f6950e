"""What the libraries of both engines on a GPU export: promotion, staging, the exchange with the
host, and captured graphs, all on a stream.

Every call returns before its work is done.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p
from typing import Any

from ..errors import UserError
from . import abi
from .gpu_device import Block, HostBlock
from .native_library import Functions

STEP_FUNCTIONS: Functions = {
    "bitmtp_cuda_abi_version": (c_int32, ()),
    "bitmtp_cuda_promote": (
        c_int32,
        (c_void_p, c_int32, c_int64, c_void_p, c_int32, c_int64, c_void_p),
    ),
    "bitmtp_cuda_stage": (c_int32, (c_void_p, c_void_p)),
    "bitmtp_cuda_send": (c_int32, (c_void_p, c_void_p, c_int64, c_void_p)),
    "bitmtp_cuda_fetch": (c_int32, (c_void_p, c_void_p, c_int64, c_void_p)),
    "bitmtp_graph_begin": (c_int32, (c_void_p,)),
    "bitmtp_graph_end": (c_int32, (c_void_p, POINTER(c_void_p))),
    "bitmtp_graph_launch": (c_int32, (c_void_p, c_void_p)),
    "bitmtp_graph_nodes": (c_int64, (c_void_p,)),
    "bitmtp_graph_destroy": (None, (c_void_p,)),
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

    def send(self, source: HostBlock, to: Block, stream: int) -> None:
        """Enqueues a copy to the device, of page-locked memory of one size, a multiple of 4."""
        check(self._library.bitmtp_cuda_send(source.address, to.address, to.size, stream))

    def fetch(self, source: Block, to: HostBlock, stream: int) -> None:
        """Enqueues a copy from the device; likewise."""
        check(self._library.bitmtp_cuda_fetch(source.address, to.address, to.size, stream))

    def capture(self, enqueue: Callable[[], None], stream: int) -> CapturedGraph:
        """What ``enqueue`` puts on ``stream``, as one graph. Nothing is run."""
        library = self._library
        collecting = gc.isenabled()
        gc.disable()  # a finaliser of anything CUDA's could end the capture
        try:
            try:
                check(library.bitmtp_graph_begin(stream))
                enqueue()
            except BaseException:
                with suppress(LaunchError):
                    check(library.bitmtp_graph_end(stream, None))
                raise
            handle = c_void_p()
            check(library.bitmtp_graph_end(stream, byref(handle)))
        finally:
            if collecting:
                gc.enable()
        return CapturedGraph(library, handle)


class CapturedGraph:
    """A graph to launch again and again, as long as somebody has it."""

    def __init__(self, library: ctypes.CDLL, handle: c_void_p) -> None:
        self._library = library
        self._handle = handle

    @property
    def nodes(self) -> int:
        """Kernels, copies and fills."""
        return int(self._library.bitmtp_graph_nodes(self._handle))

    def launch(self, stream: int) -> None:
        check(self._library.bitmtp_graph_launch(self._handle, stream))

    def __del__(self) -> None:
        self._library.bitmtp_graph_destroy(self._handle)
