"""One operator call by the CUDA library: all its tensors in one block, with guard bytes between."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.engines.cuda_device import Block, CudaDevice
from bitmtp_edge.engines.cuda_library import CudaLibrary
from bitmtp_edge.engines.operator_records import DeviceArray, build_call
from bitmtp_edge.operators import Node

Arrays = dict[str, NDArray[Any]]

GUARD, GUARD_BYTE, ALIGNMENT = 256, 0xA5, 256


class _Placed:
    """Arrays in a block of the device's memory, behind, between and before guard bytes."""

    def __init__(self, device: CudaDevice, arrays: Arrays) -> None:
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
        host = device.pinned(end)
        host.array[:end] = self.image
        with device.ordered():
            device.send(host.first(end), self.block)
        device.synchronize()

    def part(self, image: NDArray[np.uint8], name: str, like: NDArray[Any]) -> NDArray[np.uint8]:
        return image[self.offsets[name] :][: like.nbytes]

    def array(self, name: str, like: NDArray[Any]) -> DeviceArray:
        return DeviceArray(self.block.address + self.offsets[name], str(like.dtype), like.shape)

    def after(self) -> NDArray[np.uint8]:
        return self._device.download(self.block, 0, self.image.size)


@functools.cache
def _gpu() -> tuple[CudaDevice, CudaLibrary]:
    return CudaDevice(), CudaLibrary()


def run_cuda(node: Node, inputs: Arrays, outputs: Arrays, m: int, h: int) -> Arrays:
    """Outputs by port; ``outputs`` are what they hold before. Nothing else changes, the workspace
    apart, which starts as 0xFF."""
    device, library = _gpu()
    arrays = inputs | {node.output(port): like for port, like in outputs.items()}
    placed = _Placed(device, arrays)
    tensors = {name: placed.array(name, like) for name, like in arrays.items()}
    op, record = build_call(node, tensors, m, h)
    space: _Placed | None = None
    if hasattr(record, "workspace"):
        size = library.workspace_bytes(op, record)
        space = _Placed(device, {"workspace": np.full(size, 0xFF, np.uint8)})
        record.workspace = space.block.address + space.offsets["workspace"]
    library.launch(op, record, device.stream)
    after = placed.after()
    changed = after != placed.image
    made = {}
    for port, like in outputs.items():
        bytes_ = placed.part(after, node.output(port), like)
        made[port] = bytes_.view(like.dtype).reshape(like.shape).copy()
        placed.part(changed, node.output(port), like)[:] = False
    assert not changed.any(), f"{node.op} wrote outside its outputs"
    if space is not None:
        around = space.after()
        assert (around[:GUARD] == GUARD_BYTE).all(), f"{node.op} wrote before its workspace"
        assert (around[GUARD + size :] == GUARD_BYTE).all(), f"{node.op} wrote past its workspace"
    return made
