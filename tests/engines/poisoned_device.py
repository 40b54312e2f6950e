"""Devices whose memory holds 0xFF, which is no number in any format, until something writes it."""

from __future__ import annotations

from bitmtp_edge.engines.cuda_device import CudaDevice
from bitmtp_edge.engines.gpu_device import Block, HostBlock

from .host_device import HostDevice

POISON = 0xFF
# What no step may leave to a later one: all but weights and KV rows.
SCRATCH = tuple(f"the {what} of a step" for what in ("inputs", "tensors", "workspace", "outputs"))


class _Poisoned(CudaDevice):
    def __init__(self) -> None:
        self._blocks: list[tuple[str, Block]] = []
        super().__init__()

    def allocate(self, size: int, purpose: str) -> Block:
        block = super().allocate(size, purpose)
        self._blocks.append((purpose, block))
        self._fill(block)
        return block

    def pinned(self, size: int) -> HostBlock:
        block = super().pinned(size)
        block.array[:] = POISON
        return block

    def poison_scratch(self) -> None:
        """Waits, and fills all memory of steps."""
        self.synchronize()
        for purpose, block in self._blocks:
            if purpose in SCRATCH:
                self._fill(block)

    def _fill(self, block: Block) -> None:
        with self.ordered():
            block.owner[:] = POISON


class PoisonedHost(_Poisoned, HostDevice):
    pass


class PoisonedGpu(_Poisoned):
    pass
