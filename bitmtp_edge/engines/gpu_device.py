"""What an engine on a GPU has of its device: memory, one stream, copies, marks.

Everything else of such an engine deals in addresses, so that its tests put host memory in place of
a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Block:
    """Bytes of the device's memory at ``address``. ``owner`` keeps them; a slice of it keeps a part
    of them."""

    address: int
    size: int
    owner: Any

    def part(self, at: int, size: int) -> Block:
        return Block(self.address + at, size, self.owner[at : at + size])

    def first(self, size: int) -> Block:
        return self.part(0, size)


@dataclass(frozen=True)
class HostBlock:
    """Page-locked bytes of the host, which copies reach while the host goes on."""

    array: NDArray[np.uint8]
    owner: Any

    @property
    def size(self) -> int:
        return self.array.size

    @cached_property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    def first(self, size: int) -> HostBlock:
        return HostBlock(self.array[:size], self.owner[:size])


@dataclass(frozen=True)
class Pieces:
    """``count`` pieces of a block, of ``size`` bytes each and ``stride`` bytes apart, the first at
    ``at``: all multiples of 4."""

    at: int
    count: int
    size: int
    stride: int


class GpuDevice(ABC):
    """A CUDA device and one stream of it, on which all work goes in order.

    name: what a user knows it by. uuid: as NVML has it, None where nobody tells. capability: its
    compute capability. stream: its cudaStream_t.
    Every method but :meth:`current` is to be called inside a block of that one.
    """

    name: str
    uuid: str | None = None
    capability: tuple[int, int]
    stream: int

    def current(self) -> AbstractContextManager[None]:
        """The device is the calling thread's own inside the block: one that is entered again and
        again, inside itself too."""
        return nullcontext()

    def ordered(self) -> AbstractContextManager[None]:
        """What is enqueued inside the block goes to the stream."""
        return nullcontext()

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for all that was enqueued. UserError where some of it failed."""

    @abstractmethod
    def allocate(self, size: int, purpose: str) -> Block:
        """Zeroed memory of the device, at a multiple of 256. UserError if there is none for
        ``purpose``."""

    @abstractmethod
    def used(self) -> int:
        """Bytes of the device's memory that are taken, by whomever."""

    @abstractmethod
    def pinned(self, size: int) -> HostBlock:
        """Zeroed page-locked memory."""

    @abstractmethod
    def send(self, source: HostBlock, to: Block) -> None:
        """Enqueues a copy to the device, of blocks of one size."""

    @abstractmethod
    def copy(self, source: Block, these: Pieces, to: Block, those: Pieces) -> None:
        """Enqueues a copy within the device, of pieces as many and as large."""

    @abstractmethod
    def mark(self) -> Any:
        """A mark that :meth:`reach` sets and :meth:`await_mark` waits for, again and again."""

    @abstractmethod
    def reach(self, mark: Any) -> None:
        """Enqueues the setting of ``mark``."""

    @abstractmethod
    def await_mark(self, mark: Any) -> None:
        """Waits until the stream has reached ``mark``. UserError where work before it failed."""
