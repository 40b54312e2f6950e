"""Host memory and the CPU kernels in place of a GPU: what the ``cuda`` engine does, without one.

Nothing that is enqueued runs before somebody waits for it. So an output that is read too early, or
an input that is written too early, shows at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.engines import abi, cpu_library
from bitmtp_edge.engines.cuda_device import CudaDevice
from bitmtp_edge.engines.cuda_library import CudaLibrary
from bitmtp_edge.engines.gpu_device import Block, HostBlock, Pieces
from bitmtp_edge.engines.gpu_library import CapturedGraph
from bitmtp_edge.engines.kv_buffer import aligned_bytes

STREAM = 7


class HostDevice(CudaDevice):
    """allocated: purpose of each block. held: bytes of them all, freed or not."""

    def __init__(self) -> None:
        self.name = "host memory"
        self.capability = (9, 0)
        self.stream = STREAM
        self.allocated: list[str] = []
        self.held = 0
        self._queue: list[Callable[[], None]] = []
        self._done = 0
        self._recording: list[Callable[[], None]] | None = None
        self._ordered = 0

    def enqueue(self, work: Callable[[], None]) -> None:
        (self._queue if self._recording is None else self._recording).append(work)

    def current(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def ordered(self) -> Iterator[None]:
        self._ordered += 1
        yield
        self._ordered -= 1

    def synchronize(self) -> None:
        self._run_to(len(self._queue))

    def _run_to(self, end: int) -> None:
        assert self._recording is None, "nothing waits during a capture"
        while self._done < end:
            self._queue[self._done]()
            self._done += 1

    def used(self) -> int:
        return self.held

    def allocate(self, size: int, purpose: str) -> Block:
        self.allocated.append(purpose)
        self.held += size
        owner = aligned_bytes(size, purpose)
        return Block(owner.ctypes.data, size, owner)

    def pinned(self, size: int) -> HostBlock:
        array = aligned_bytes(size, "page-locked memory")
        return HostBlock(array, array)

    def send(self, source: HostBlock, to: Block) -> None:
        self._copy(source.array, to.owner)

    def copy(self, source: Block, these: Pieces, to: Block, those: Pieces) -> None:
        assert these.count == those.count
        for i in range(these.count):
            first, second = these.at + i * these.stride, those.at + i * those.stride
            self._copy(
                source.owner[first : first + these.size], to.owner[second : second + those.size]
            )

    def _copy(self, source: NDArray[np.uint8], to: NDArray[np.uint8]) -> None:
        assert self._ordered and source.size == to.size
        self.enqueue(partial(np.copyto, to, source))

    def download(self, source: Block, at: int, size: int) -> NDArray[np.uint8]:
        self.synchronize()
        copied: NDArray[np.uint8] = source.owner[at : at + size].copy()
        return copied

    def mark(self) -> list[int]:
        return [0]

    def reach(self, mark: Any) -> None:
        mark[0] = len(self._queue)

    def await_mark(self, mark: Any) -> None:
        self._run_to(mark[0])

    def record(self, enqueue: Callable[[], None]) -> list[Callable[[], None]]:
        recorded: list[Callable[[], None]] = []
        self._recording = recorded
        try:
            enqueue()
        finally:
            self._recording = None
        return recorded

    def timed(self, calls: Sequence[Callable[[], None]]) -> list[int]:
        for call in calls:
            call()
        self.synchronize()
        return [1] * len(calls)


class HostLibrary(CudaLibrary):
    """The CPU kernels, one plan a launch, and all else written out.

    staged, captures: how many there were. sent, fetched: bytes.
    """

    def __init__(self, device: HostDevice) -> None:
        self._device = device
        self._pool = cpu_library.Pool(1)
        self.staged = 0
        self.captures = 0
        self.sent = 0
        self.fetched = 0

    def launch(self, op: int, record: ctypes.Structure, stream: int) -> None:
        assert stream == STREAM
        plan = cpu_library.Plan([(op, record)])  # copies the record, as a launch reads it
        self._device.enqueue(partial(plan.run, self._pool))

    def workspace_bytes(self, op: int, record: ctypes.Structure) -> int:
        return cpu_library.workspace_bytes(op, record, 1)

    def promote(
        self, planes: Any, count: int, capacity: int, rows: Sequence[int], at: int, stream: int
    ) -> None:
        assert stream == STREAM
        indices = (ctypes.c_int32 * len(rows))(*rows)
        library = cpu_library._library()
        call = library.bitmtp_cpu_promote
        self._device.enqueue(partial(call, planes, count, capacity, indices, len(rows), at))

    def stage(self, args: abi.StageArgs, stream: int) -> None:
        assert stream == STREAM
        self.staged += 1
        self._device.enqueue(enqueued_stage(args))

    def send(self, source: HostBlock, to: Block, stream: int) -> None:
        assert stream == STREAM and source.size == to.size
        self.sent += to.size
        self._device.enqueue(partial(np.copyto, to.owner, source.array))

    def fetch(self, source: Block, to: HostBlock, stream: int) -> None:
        assert stream == STREAM and source.size == to.size
        self.fetched += to.size
        self._device.enqueue(partial(np.copyto, to.array, source.owner))

    def capture(self, enqueue: Callable[[], None], stream: int) -> CapturedGraph:
        assert stream == STREAM
        self.captures += 1
        return RecordedGraph(self._device, self._device.record(enqueue))


class RecordedGraph(CapturedGraph):
    def __init__(self, device: HostDevice, work: Sequence[Callable[[], None]]) -> None:
        self._device = device
        self._work = work

    @property
    def nodes(self) -> int:
        return len(self._work)

    def launch(self, stream: int) -> None:
        assert stream == STREAM
        for each in self._work:
            self._device.enqueue(each)

    def __del__(self) -> None:
        pass


def enqueued_stage(args: abi.StageArgs) -> Callable[[], None]:
    """What staging does, later: what the record points at is read now."""
    prefix = [_int(args.prefix, i) for i in range(args.prefix_rows)]
    outputs, rows = ctypes.c_void_p.from_address(args.outputs).value, _int(args.output_rows, 0)
    sizes = {name: getattr(args, name) for name, _ in abi.StageArgs._fields_}
    return partial(_stage, sizes, prefix, outputs or 0, rows)


def _stage(sizes: dict[str, int], prefix: list[int], outputs: int, rows: int) -> None:
    m, h, history = sizes["M"], sizes["h"], sizes["history"]
    words = -(-m // 32)
    ids = prefix + [_int(outputs, row * sizes["top_k"]) for row in range(rows)]
    real = len(ids)
    _ints(sizes["token_ids"], m)[:] = ids + [0] * (m - real)
    _ints(sizes["positions"], m)[:] = [history + (i if i < real else 0) for i in range(m)]
    sees = np.eye(m, 32 * words, dtype=np.uint8)
    sees[:real, :real] = np.tri(real, dtype=np.uint8)
    first = real - sizes["two_way"]
    sees[first:real, first:real] = 1
    packed = np.packbits(sees, axis=1, bitorder="little").view("<i4")
    _ints(sizes["mask"], m * words)[:] = packed.reshape(-1)
    last = real - sizes["heads"]
    _ints(sizes["head_slots"], h)[:] = [last + min(i, sizes["heads"] - 1) for i in range(h)]
    _ints(sizes["history_length"], 1)[:] = history
    _ints(sizes["kv4_length"], 1)[:] = sizes["kv4_history"]


def _ints(address: int, count: int) -> NDArray[np.int32]:
    return np.frombuffer((ctypes.c_int32 * count).from_address(address), np.int32)


def _int(address: int, index: int) -> int:
    return ctypes.c_int32.from_address(address + 4 * index).value
