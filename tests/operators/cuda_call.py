"""One operator call on a GPU: all its tensors in one block, with guard bytes between."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.engines.cuda_device import CudaDevice
from bitmtp_edge.engines.cuda_library import CudaLibrary
from bitmtp_edge.engines.gpu_device import Block
from bitmtp_edge.engines.operator_records import DeviceArray, build_call
from bitmtp_edge.operators import Node

Arrays = dict[str, NDArray[Any]]

GUARD, GUARD_BYTE, ALIGNMENT = 256, 0xA5, 256


class Placed:
    """Arrays in a block of the device's memory, behind, between and before guard bytes."""

    def __init__(self, device: CudaDevice, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._device = device
        self.offsets: dict[str, int] = {}
        end = GUARD
        for name, array in arrays.items():
            self.offsets[name] = end
            end += -(-(array.nbytes + GUARD) // ALIGNMENT) * ALIGNMENT
        self.image = np.full(end, GUARD_BYTE, np.uint8)
        for name, array in arrays.items():
            self.part(self.image, name, array)[:] = array.reshape(-1).view(np.uint8)
        self.block: Block = device.allocate(end, "a call")
        self._host = device.pinned(end)
        self._host.array[:end] = self.image
        self.send()

    def send(self) -> None:
        """Everything as it was in the beginning."""
        end = self.image.size
        with self._device.ordered():
            self._device.send(self._host.first(end), self.block.first(end))
        self._device.synchronize()

    def part(self, image: NDArray[np.uint8], name: str, like: NDArray[Any]) -> NDArray[np.uint8]:
        return image[self.offsets[name] :][: like.nbytes]

    def array(self, name: str, like: NDArray[Any]) -> DeviceArray:
        return DeviceArray(self.block.address + self.offsets[name], str(like.dtype), like.shape)

    def after(self) -> NDArray[np.uint8]:
        return self._device.download(self.block, 0, self.image.size)

    def changed(self, outputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """``outputs`` as they are now. Nothing else may have changed."""
        after = self.after()
        changed = after != self.image
        made = {}
        for name, like in outputs.items():
            made[name] = self.part(after, name, like).view(like.dtype).reshape(like.shape).copy()
            self.part(changed, name, like)[:] = False
        assert not changed.any(), "something but the outputs was written"
        return made


class Workspace:
    """``size`` bytes of 0xFF between guard bytes."""

    def __init__(self, device: CudaDevice, size: int) -> None:
        self._size = size
        self._placed = Placed(device, {"workspace": np.full(size, 0xFF, np.uint8)})
        self.address = self._placed.block.address + self._placed.offsets["workspace"]

    def check(self) -> None:
        around = self._placed.after()
        assert (around[:GUARD] == GUARD_BYTE).all(), "written before the workspace"
        assert (around[GUARD + self._size :] == GUARD_BYTE).all(), "written past the workspace"


@functools.cache
def gpu() -> tuple[CudaDevice, CudaLibrary]:
    return CudaDevice(), CudaLibrary()


def place(node: Node, inputs: Arrays, outputs: Arrays) -> tuple[Placed, dict[str, DeviceArray]]:
    """The tensors of a call, ``outputs`` by port, as they are before it."""
    arrays = inputs | {node.output(port): like for port, like in outputs.items()}
    placed = Placed(gpu()[0], arrays)
    return placed, {name: placed.array(name, like) for name, like in arrays.items()}


def results(node: Node, placed: Placed, outputs: Arrays) -> Arrays:
    """Outputs by port."""
    made = placed.changed({node.output(port): like for port, like in outputs.items()})
    return {port: made[node.output(port)] for port in outputs}


def run_cuda(node: Node, inputs: Arrays, outputs: Arrays, m: int, h: int) -> Arrays:
    """Outputs by port, from the CUDA library. ``outputs`` are what they hold before."""
    device, library = gpu()
    placed, tensors = place(node, inputs, outputs)
    op, record = build_call(node, tensors, m, h)
    space: Workspace | None = None
    if hasattr(record, "workspace"):
        space = Workspace(device, library.workspace_bytes(op, record))
        record.workspace = space.address
    library.launch(op, record, device.stream)
    made = results(node, placed, outputs)
    if space is not None:
        space.check()
    return made
