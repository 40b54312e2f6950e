"""The KV buffer of one segment on a CUDA device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..operators import Node
from . import abi
from .cuda_device import CudaDevice
from .cuda_library import CudaLibrary
from .kv_buffer import check_copy, check_promotion, kv_planes
from .operator_records import DeviceArray


class CudaKVBuffer:
    """As :class:`KVBuffer`, of whose planes it has the layout: ``history`` and ``workspace`` by
    tensor name."""

    def __init__(
        self, nodes: Sequence[Node], capacity: int, max_width: int, device: CudaDevice
    ) -> None:
        self.capacity = capacity
        self.history: dict[str, DeviceArray] = {}
        self.workspace: dict[str, DeviceArray] = {}
        self._max_width = max_width
        self._device = device
        slots = capacity + max_width
        planes, size = kv_planes(nodes, slots)
        self.block = device.allocate(size, f"a KV buffer of {slots} rows")
        records = []
        for plane in planes:
            dtype, (_, *row) = plane.spec
            base = self.block.address + plane.offset
            row_bytes = math.prod(row) * np.dtype(dtype).itemsize
            self.history[plane.history] = DeviceArray(base, dtype, (capacity, *row))
            self.workspace[plane.rows] = DeviceArray(
                base + capacity * row_bytes, dtype, (max_width, *row)
            )
            records.append(abi.KVPlane(base, row_bytes))
        self._records = (abi.KVPlane * len(records))(*records)

    def promote(self, rows: Sequence[int], at: int, library: CudaLibrary) -> None:
        """Enqueues that history rows ``at, at+1, ...`` take workspace rows ``rows``. ValueError for
        rows outside them."""
        check_promotion(rows, at, self.capacity, self._max_width)
        if len(rows):
            library.promote(
                self._records, len(self._records), self.capacity, rows, at, self._device.stream
            )

    def copy_history(self, other: CudaKVBuffer, rows: int, first: int = 0) -> None:
        """Enqueues a copy of history rows ``first .. rows - 1`` of ``other``, whose planes are the
        same. ValueError if either has fewer."""
        check_copy(first, rows, other.capacity, self.capacity)
        with self._device.ordered():
            for mine, theirs in zip(self._records, other._records, strict=True):
                at = first * mine.row_bytes
                self._device.copy(
                    other.block,
                    theirs.base - other.block.address + at,
                    self.block,
                    mine.base - self.block.address + at,
                    (rows - first) * mine.row_bytes,
                )
