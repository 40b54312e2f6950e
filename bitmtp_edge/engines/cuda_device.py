"""What the ``cuda`` engine has of PyTorch: memory, one stream, copies, events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError, missing_extra
from .gpu_device import Block, GpuDevice, HostBlock, Pieces


class CudaDevice(GpuDevice):
    """The current CUDA device of PyTorch.

    Raises UserError where PyTorch is missing, is not built for CUDA, or finds no device.
    """

    def __init__(self) -> None:
        try:
            import torch
        except ImportError:
            raise missing_extra("torch", "desktop") from None
        if torch.version.cuda is None:
            raise UserError(
                f"torch {torch.__version__} is a build without CUDA: install one with it, "
                "from the index of pytorch.org that fits the driver"
            )
        try:
            if not torch.cuda.is_available():
                raise UserError(
                    f"torch {torch.__version__} finds no CUDA device: check nvidia-smi and "
                    "CUDA_VISIBLE_DEVICES, or install a build for this driver"
                )
            self._torch = torch
            self.index = torch.cuda.current_device()
            self.name = torch.cuda.get_device_name(self.index)
            self.capability = torch.cuda.get_device_capability(self.index)
            uuid = getattr(torch.cuda.get_device_properties(self.index), "uuid", None)
            self.uuid = None if uuid is None else f"GPU-{uuid}"
            self._only = torch.cuda.device_count() == 1
            self._stream = torch.cuda.Stream(self.index)
        except RuntimeError as error:
            raise UserError(f"the CUDA device does not start: {_first_line(error)}") from None
        self.stream = self._stream.cuda_stream

    def current(self) -> AbstractContextManager[None]:
        if self._only:  # PyTorch takes a microsecond to tell what is current
            return nullcontext()
        return _Current(self._torch.cuda, self.index)

    @contextmanager
    def ordered(self) -> Iterator[None]:
        with self._torch.cuda.stream(self._stream):
            yield

    def synchronize(self) -> None:
        with _told("a step"):
            self._stream.synchronize()

    # ---- memory -------------------------------------------------------------------------------

    def allocate(self, size: int, purpose: str) -> Block:
        torch = self._torch
        try:
            with self.ordered():
                owner = torch.zeros(max(size, 1), dtype=torch.uint8, device=self.index)
        except torch.cuda.OutOfMemoryError:
            free, total = (amount / 2**20 for amount in torch.cuda.mem_get_info(self.index))
            raise UserError(
                f"no GPU memory for {purpose} ({size / 2**20:.0f} MiB; {free:.0f} of {total:.0f} "
                "MiB are free): close what else uses the GPU, or use a smaller model or context"
            ) from None
        return Block(owner.data_ptr(), size, owner)

    def used(self) -> int:
        free, total = self._torch.cuda.mem_get_info(self.index)
        return int(total - free)

    def pinned(self, size: int) -> HostBlock:
        torch = self._torch
        with _told(f"{size} bytes of page-locked memory"):
            owner = torch.zeros(max(size, 1), dtype=torch.uint8, pin_memory=True)
        return HostBlock(owner.numpy(), owner)

    def send(self, source: HostBlock, to: Block) -> None:
        to.owner.copy_(source.owner, non_blocking=True)

    def copy(self, source: Block, these: Pieces, to: Block, those: Pieces) -> None:
        self._words(to, those).copy_(self._words(source, these))

    def _words(self, block: Block, pieces: Pieces) -> Any:
        words = block.owner.view(self._torch.int32)
        shape, strides = (pieces.count, pieces.size // 4), (pieces.stride // 4, 1)
        return words.as_strided(shape, strides, words.storage_offset() + pieces.at // 4)

    def download(self, source: Block, at: int, size: int) -> NDArray[np.uint8]:
        """A copy of ``size`` bytes at ``at``, when all that was enqueued has run."""
        self.synchronize()
        with _told("a copy from the GPU"):
            copied: NDArray[np.uint8] = source.owner[at : at + size].cpu().numpy()
        return copied

    # ---- time ---------------------------------------------------------------------------------

    def mark(self) -> Any:
        return self._torch.cuda.Event()

    def reach(self, mark: Any) -> None:
        mark.record(self._stream)

    def await_mark(self, mark: Any) -> None:
        try:  # every step comes by here
            mark.synchronize()
        except RuntimeError as error:
            raise _failed("a step", error) from None

    def timed(self, calls: Sequence[Callable[[], None]]) -> list[int]:
        """Enqueues ``calls``, waits, and gives the nanoseconds that the device spent on each."""
        event = self._torch.cuda.Event
        marks = [event(enable_timing=True) for _ in range(len(calls) + 1)]
        marks[0].record(self._stream)
        for call, mark in zip(calls, marks[1:], strict=True):
            call()
            mark.record(self._stream)
        self.synchronize()
        return [int(1e6 * before.elapsed_time(after)) for before, after in pairwise(marks)]


class _Current(AbstractContextManager[None]):
    """Device ``index``, which most often is current already. By one thread at a time."""

    def __init__(self, cuda: Any, index: int) -> None:
        self._cuda = cuda
        self._index = index
        self._before: list[int] = []

    def __enter__(self) -> None:
        before = self._cuda.current_device()
        if before != self._index:
            self._cuda.set_device(self._index)
        self._before.append(before)

    def __exit__(self, *exception: object) -> None:
        before = self._before.pop()
        if before != self._index:
            self._cuda.set_device(before)


@contextmanager
def _told(subject: str) -> Iterator[None]:
    """A failure of the GPU inside, told in one line."""
    try:
        yield
    except RuntimeError as error:
        raise _failed(subject, error) from None


def _failed(subject: str, error: RuntimeError) -> UserError:
    return UserError(f"{subject} failed on the GPU: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
