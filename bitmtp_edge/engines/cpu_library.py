"""The CPU library through ctypes: instruction sets, teams of threads, plans, promotion."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_void_p
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from . import abi
from .native_library import Functions, load


class PlanError(ValueError):
    """The library refused an operator's record: a size, kind or pointer in it is not valid."""


class _Call(ctypes.Structure):
    _fields_ = (("op", c_int32), ("args", c_void_p))


# ---- the library ---------------------------------------------------------------------------------

_FUNCTIONS: Functions = {
    "bitmtp_cpu_abi_version": (c_int32, ()),
    "bitmtp_cpu_isas": (c_char_p, ()),
    "bitmtp_cpu_select_isa": (c_int32, (c_char_p,)),
    "bitmtp_cpu_isa": (c_char_p, ()),
    "bitmtp_cpu_pool_create": (c_void_p, (c_int32,)),
    "bitmtp_cpu_pool_threads": (c_int32, (c_void_p,)),
    "bitmtp_cpu_pool_destroy": (None, (c_void_p,)),
    "bitmtp_cpu_workspace_bytes": (c_int64, (c_int32, c_void_p, c_int32)),
    "bitmtp_cpu_plan_create": (c_void_p, (POINTER(_Call), c_int32, c_char_p, c_int32)),
    "bitmtp_cpu_plan_run": (None, (c_void_p, c_void_p)),
    "bitmtp_cpu_plan_profile": (None, (c_void_p, c_void_p, POINTER(c_int64))),
    "bitmtp_cpu_plan_destroy": (None, (c_void_p,)),
    "bitmtp_cpu_promote": (
        None,
        (POINTER(abi.KVPlane), c_int32, c_int64, POINTER(c_int32), c_int32, c_int64),
    ),
}


@functools.cache
def _library() -> ctypes.CDLL:
    return load("libbitmtp_cpu.so", "CPU", _FUNCTIONS, "reinstall with  pip install .")


def isas() -> list[str]:
    """Instruction sets of the library that this processor runs, best first."""
    names: bytes = _library().bitmtp_cpu_isas()
    return names.decode().split(",")


def select_isa(name: str | None) -> None:
    """Plans made from now on use instruction set ``name``; None is the best. UserError if it is not
    one of :func:`isas`."""
    encoded = None if name is None else name.encode()
    if _library().bitmtp_cpu_select_isa(encoded) != 0:
        raise UserError(
            f"instruction set {name!r} does not run here: choose one of {', '.join(isas())}"
        )


def workspace_bytes(op: int, args: ctypes.Structure, threads: int) -> int:
    """Bytes that ``args.workspace`` must have, on a 64-byte boundary, with a pool of ``threads``;
    0 for an operator without one."""
    return int(_library().bitmtp_cpu_workspace_bytes(op, byref(args), threads))


class Pool:
    """A team of threads. ``threads`` <= 0 takes one for every processor the process may run on.

    One plan runs at a time, and only in the process that made the pool.
    """

    def __init__(self, threads: int = 0) -> None:
        self._handle: int | None = None
        self._process = os.getpid()
        self._handle = _library().bitmtp_cpu_pool_create(threads)
        if self._handle is None:
            raise UserError(f"cannot start {threads} threads: ask for fewer")
        self.threads = int(_library().bitmtp_cpu_pool_threads(self._handle))

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise RuntimeError("the pool is closed")
        if self._process != os.getpid():
            # Threads do not follow a fork: the step would wait for them for ever.
            raise UserError(
                "this engine was opened before the process forked: open the bundle in the child"
            )
        return self._handle

    def close(self) -> None:
        """Ends the threads. No plan may be running on them."""
        if self._handle is not None:
            if self._process == os.getpid():
                _library().bitmtp_cpu_pool_destroy(self._handle)
            self._handle = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Plan:
    """Operators that run one after another. ``calls`` are pairs of an operator and its record.

    The library copies the records; the memory they point at must outlive the plan. PlanError where
    it refuses one.
    """

    def __init__(self, calls: Sequence[tuple[int, ctypes.Structure]]) -> None:
        self._handle: int | None = None
        self._count = len(calls)
        array = (_Call * len(calls))(*(_Call(op, ctypes.addressof(record)) for op, record in calls))
        error = ctypes.create_string_buffer(512)
        self._handle = _library().bitmtp_cpu_plan_create(array, len(calls), error, len(error))
        if self._handle is None:
            raise PlanError(error.value.decode())

    def run(self, pool: Pool) -> None:
        """Runs every call on the pool, without the interpreter's lock."""
        _library().bitmtp_cpu_plan_run(self._handle, pool.handle)

    def profile(self, pool: Pool) -> list[int]:
        """Runs, and returns the nanoseconds that each call took."""
        times = (c_int64 * self._count)()
        _library().bitmtp_cpu_plan_profile(self._handle, pool.handle, times)
        return list(times)

    def __del__(self) -> None:
        if self._handle is not None:
            _library().bitmtp_cpu_plan_destroy(self._handle)
            self._handle = None


class KVPlanes:
    """The planes of one KV buffer, described to the library once: a step promotes into all of them.

    planes: C-contiguous, writeable arrays [capacity + workspace rows, ...], kept alive here.
    ValueError for others.
    """

    def __init__(self, planes: Sequence[NDArray[np.generic]], capacity: int) -> None:
        for plane in planes:
            if not plane.flags.c_contiguous or not plane.flags.writeable:
                raise ValueError("a KV plane must be contiguous and writeable")
        self._planes = tuple(planes)
        self._capacity = capacity
        self._workspace = min(plane.shape[0] for plane in planes) - capacity
        self._records = (abi.KVPlane * len(planes))(
            *(abi.KVPlane(plane.ctypes.data, plane.strides[0]) for plane in planes)
        )

    def promote(self, rows: Sequence[int], at: int) -> None:
        """History row ``at + i`` of every plane takes workspace row ``rows[i]``. ValueError for
        rows outside them."""
        if not 0 <= at <= self._capacity - len(rows):
            raise ValueError(
                f"rows {at} .. {at + len(rows) - 1} are not history of {self._capacity} rows"
            )
        if len(rows) and not 0 <= min(rows) <= max(rows) < self._workspace:
            raise ValueError(f"{list(rows)} are not rows of {self._workspace}")
        indices = (c_int32 * len(rows))(*rows)
        _library().bitmtp_cpu_promote(
            self._records, len(self._planes), self._capacity, indices, len(rows), at
        )
