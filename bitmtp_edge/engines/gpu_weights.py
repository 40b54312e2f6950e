"""A bundle's weights in a GPU's memory: one block, laid out as weights.bin is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..bundle import WEIGHTS_FILE, Bundle
from ..errors import UserError
from ..progress import Progress
from .gpu_device import Block, GpuDevice
from .operator_records import DeviceArray

BOUNCE = 1 << 25  # bytes of page-locked memory through which weights go
SHOWN_BYTES = 1 << 30  # of weights, from which their way to the GPU is shown


@dataclass(frozen=True)
class Weights:
    """A bundle's weights in the device's memory: ``tensors`` by name, all in ``block``."""

    block: Block
    tensors: Mapping[str, DeviceArray]


def upload_weights(bundle: Bundle, device: GpuDevice) -> Weights:
    """Reads weights.bin, a piece at a time, into a block of the device's memory.

    Raises UserError where there is no memory, or the file is shorter than it was.
    """
    size = max((entry.offset + entry.bytes for entry in bundle.tensors.values()), default=0)
    block = device.allocate(size, "the weights")
    pieces = _send(bundle.file(WEIGHTS_FILE), device, block)
    if size < SHOWN_BYTES:
        for _ in pieces:
            pass
    else:
        with Progress(size, "weights to the GPU", "bytes") as progress:
            for piece in pieces:
                progress.advance(piece)
    tensors = {
        name: DeviceArray(block.address + entry.offset, entry.dtype, entry.shape)
        for name, entry in bundle.tensors.items()
    }
    return Weights(block, tensors)


def _send(path: Path, device: GpuDevice, to: Block) -> Iterator[int]:
    """Yields the bytes of each piece once they are on the device."""
    bounce = device.pinned(min(to.size, BOUNCE))
    with path.open("rb", buffering=0) as file:
        for at in range(0, to.size, BOUNCE):
            source = bounce.first(min(BOUNCE, to.size - at))
            if not _fill(memoryview(source.array.data), file):
                raise UserError(f"{path} has become shorter: copy the bundle again")
            with device.ordered():
                device.send(source, to.part(at, source.size))
            device.synchronize()
            _drop_cached(file, at, source.size)
            yield source.size


def _fill(view: memoryview, file: BinaryIO) -> bool:
    """Whether the file had so many bytes left."""
    while view.nbytes:
        count = file.readinto(view)  # type: ignore[attr-defined]  # a raw file has it
        if not count:
            return False
        view = view[count:]
    return True


def _drop_cached(file: BinaryIO, at: int, size: int) -> None:
    """Tells the system that what was read is not needed again: a board's file cache and GPU share
    one memory, and the GPU's part cannot push the cache out."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), at, size, os.POSIX_FADV_DONTNEED)
