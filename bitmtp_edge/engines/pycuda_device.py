"""What the ``tensorrt`` engine has of pycuda: memory, one stream, copies, events.

The context is the device's primary one, which PyTorch and everything else of CUDA's runtime use as
well: retained, never made, so that the engine lives beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakSet

import numpy as np

from ..errors import UserError, missing_extra
from ..host import read_host
from .gpu_device import Block, GpuDevice, HostBlock, Pieces

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: the stream does not wait for the default one


class PycudaDevice(GpuDevice):
    """CUDA device ``index``, until :meth:`close`.

    Raises UserError where pycuda is missing, or finds no such device.
    """

    def __init__(self, index: int = 0) -> None:
        try:
            import pycuda.driver as driver
        except ModuleNotFoundError:
            raise missing_extra("pycuda", "jetson") from None
        except ImportError as error:
            raise UserError(
                f"pycuda does not load ({error}): it was compiled for another CUDA; compile it "
                "again with  pip install --force-reinstall --no-deps --no-cache-dir pycuda"
            ) from None
        self._driver = driver
        try:
            driver.init()
            device = driver.Device(index)
            self.name = device.name()
            self.capability = device.compute_capability()
            # On boards, where the processor and the GPU share one memory.
            self._shared_memory = bool(device.get_attribute(driver.device_attribute.INTEGRATED))
            self._context: Any = device.retain_primary_context()
        except driver.Error as error:
            raise UserError(f"the CUDA device does not start: {error}") from None
        self._owners: WeakSet[_Owner] = WeakSet()
        with self.current(), self._told("a stream"):
            self._stream = driver.Stream(NON_BLOCKING)
            self.stream = int(self._stream.handle)

    def close(self) -> None:
        """Frees all memory that came from here, and gives the context back: whoever else has it
        keeps it."""
        if self._context is None:
            return
        with self.current():
            for owner in self._owners:
                owner.free()
            del self._stream
        self._context.detach()
        self._context = None

    def current(self) -> AbstractContextManager[None]:
        return _Pushed(self._context)

    def synchronize(self) -> None:
        with self._told("a step"):
            self._stream.synchronize()

    def free_memory(self) -> int:
        """Bytes that can be had now. Where the memory is the processor's too, file caches count:
        the system gives them up."""
        free, _ = self._driver.mem_get_info()
        if self._shared_memory:
            return max(int(free), read_host().available or 0)
        return int(free)

    def used(self) -> int:
        free, total = self._driver.mem_get_info()
        return int(total - free)

    def allocate(self, size: int, purpose: str) -> Block:
        driver = self._driver
        try:
            memory = driver.mem_alloc(size or 1)
        except driver.MemoryError:
            free, total = (amount / 2**20 for amount in driver.mem_get_info())
            raise UserError(
                f"no GPU memory for {purpose} ({size / 2**20:.0f} MiB; {free:.0f} of {total:.0f} "
                "MiB are free): close what else uses it, or use a smaller model or context"
            ) from None
        # OverflowError, TypeError: what the bindings make of a size that no size_t holds.
        except (driver.Error, OverflowError, TypeError) as error:
            raise UserError(f"{size} bytes for {purpose} failed on the GPU: {error}") from None
        owner = _Owner(memory)
        self._owners.add(owner)
        block = Block(int(memory), size, owner)
        if size:
            with self._told("a fill on the GPU"):
                driver.memset_d8_async(block.address, 0, size, self._stream)
        return block

    def pinned(self, size: int) -> HostBlock:
        with self._told(f"{size} bytes of page-locked memory"):
            mapped = self._driver.host_alloc_flags.DEVICEMAP  # kernels of ours read and write it
            array = self._driver.pagelocked_zeros(max(size, 1), np.uint8, mem_flags=mapped)
        return HostBlock(array[:size], array)

    def send(self, source: HostBlock, to: Block) -> None:
        with self._told("a copy to the GPU"):
            self._driver.memcpy_htod_async(to.address, source.array, self._stream)

    def copy(self, source: Block, these: Pieces, to: Block, those: Pieces) -> None:
        with self._told("a copy on the GPU"):
            for i in range(these.count):
                start = source.address + these.at + i * these.stride
                end = to.address + those.at + i * those.stride
                self._driver.memcpy_dtod_async(end, start, these.size, self._stream)

    def mark(self) -> Any:
        with self._told("an event"):
            return self._driver.Event(self._driver.event_flags.DISABLE_TIMING)

    def reach(self, mark: Any) -> None:
        with self._told("an event"):
            mark.record(self._stream)

    def await_mark(self, mark: Any) -> None:
        with self._told("a step"):
            mark.synchronize()

    @contextmanager
    def _told(self, subject: str) -> Iterator[None]:
        """A failure of the GPU inside, told in one line."""
        try:
            yield
        except self._driver.Error as error:
            raise UserError(f"{subject} failed on the GPU: {error}") from None


class _Pushed(AbstractContextManager[None]):
    """pycuda keeps a stack of contexts for each thread: whoever pushes, pops."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._context.push()

    def __exit__(self, *exception: object) -> None:
        self._context.pop()


class _Owner:
    """A piece of the device's memory, which its parts keep as a whole."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def __getitem__(self, part: slice) -> _Owner:
        return self

    def free(self) -> None:
        self._memory.free()
