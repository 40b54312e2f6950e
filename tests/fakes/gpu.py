"""A GPU made of host memory: what the stand-ins for pycuda, TensorRT and our plugins share.

Nothing that is enqueued runs before somebody waits for it, every address must be of memory that is
there, and every call must be made with the context current: else an AssertionError says so.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.engines import cpu_library
from bitmtp_edge.engines.kv_buffer import ALIGNMENT, aligned_bytes

if TYPE_CHECKING:
    from .network_step import NetworkStep

POISON = 0xFF
Work = Callable[[], None]


class Kernels(Protocol):
    def launch(self, op: int, record: ctypes.Structure, handle: int) -> None: ...

    def workspace_bytes(self, op: int, record: ctypes.Structure) -> int: ...


class FakeGpu:
    """retained: how often the primary context is. pushed: how often, on whatever thread. total:
    bytes of memory. held: bytes of it that are allocated. taken: allocations so far. launches:
    operators that have run. faulted: whether a wait has failed."""

    def __init__(self, total: int = 8 << 30) -> None:
        self.total = total
        self.retained = 0
        self.pushed = 0
        self.taken = 0
        self.launches = 0
        self.faulted = False
        self.pool = cpu_library.Pool(1)
        self._blocks: dict[int, NDArray[np.uint8]] = {}
        self._streams: dict[int, Stream] = {}

    def require_current(self) -> None:
        assert self.pushed > 0, "no context is current"

    # ---- memory -----------------------------------------------------------------------------

    def allocate(self, size: int) -> int:
        """Address of memory that holds 0xFF; 0 where there is none."""
        self.require_current()
        if size > self.total - self.held:
            return 0
        self.taken += 1
        block = aligned_bytes(size, "a test")
        block[:] = POISON
        address = block.ctypes.data
        self._blocks[address] = block
        return address

    def free(self, address: int) -> None:
        self.require_current()
        if not self.faulted:  # the driver waits first
            for stream in self._streams.values():
                stream.run_to(stream.end)
        del self._blocks[address]

    @property
    def held(self) -> int:
        return sum(block.size for block in self._blocks.values())

    def bytes_at(self, address: int, size: int) -> NDArray[np.uint8]:
        """``size`` bytes of allocated memory."""
        starts = sorted(self._blocks)
        index = bisect_right(starts, address) - 1
        assert index >= 0, f"{address:#x} is not the device's"
        block = self._blocks[starts[index]]
        at = address - starts[index]
        assert at + size <= block.size, f"{size} bytes at {address:#x} are not the device's"
        return block[at : at + size]

    def check(self, address: int, size: int) -> None:
        """AssertionError unless ``size`` bytes at ``address`` may be given to TensorRT."""
        assert address % ALIGNMENT == 0, f"{address:#x} is no multiple of {ALIGNMENT}"
        self.bytes_at(address, size)

    # ---- streams ------------------------------------------------------------------------------

    def new_stream(self) -> Stream:
        self.require_current()
        stream = Stream(handle=4096 + 16 * len(self._streams))
        self._streams[stream.handle] = stream
        return stream

    def stream(self, handle: int | None) -> Stream:
        self.require_current()
        assert handle in self._streams, f"{handle} is no stream"
        return self._streams[handle]

    @property
    def idle(self) -> bool:
        """Whether all that was enqueued has run, or never will, since the device failed."""
        return self.faulted or all(stream.idle for stream in self._streams.values())

    def capturing(self, handle: int) -> bool:
        return self.stream(handle).recording is not None

    def poison(self, address: int, size: int, handle: int) -> None:
        """Enqueues bytes that are no number."""
        self.stream(handle).enqueue(partial(self.bytes_at(address, size).fill, POISON))

    def launch(self, op: int, record: ctypes.Structure, handle: int) -> None:
        """Enqueues an operator by the CPU's kernels; reads the record now, as a launch does."""
        plan = cpu_library.Plan([(op, record)])

        def run() -> None:
            self.launches += 1
            plan.run(self.pool)

        self.stream(handle).enqueue(run)

    def workspace_bytes(self, op: int, record: ctypes.Structure) -> int:
        return cpu_library.workspace_bytes(op, record, 1)

    def runner(self, step: NetworkStep) -> KernelRunner:
        return KernelRunner(self, step)


class KernelRunner:
    """A step by a machine's own kernels. workspace_bytes: of the operator that wants most."""

    def __init__(self, kernels: Kernels, step: NetworkStep) -> None:
        self._kernels = kernels
        self._step = step
        calls = step.calls(dict.fromkeys(step.specs, ALIGNMENT))
        users = [(op, record) for op, record in calls if hasattr(record, "workspace")]
        self.workspace_bytes = max(kernels.workspace_bytes(op, record) for op, record in users)

    def enqueue(self, addresses: Mapping[str, int], workspace: int, handle: int) -> None:
        for op, record in self._step.calls(addresses):
            if hasattr(record, "workspace"):
                record.workspace = workspace
            self._kernels.launch(op, record, handle)


class Stream:
    """What was enqueued, and how far it has run. recording: what a capture has taken so far."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.recording: list[Work] | None = None
        self._queue: list[Work] = []
        self._done = 0

    def enqueue(self, work: Work) -> None:
        (self._queue if self.recording is None else self.recording).append(work)

    @property
    def end(self) -> int:
        return len(self._queue)

    @property
    def idle(self) -> bool:
        return self._done == self.end

    def run_to(self, end: int) -> None:
        assert self.recording is None, "nothing waits during a capture"
        while self._done < end:
            self._queue[self._done]()
            self._done += 1
