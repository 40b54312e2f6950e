"""The KV buffer of one segment on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..operators import Node
from . import abi
from .gpu_device import GpuDevice, Pieces
from .gpu_library import StepLibrary
from .kv_buffer import check_copy, check_promotion, kv_planes
from .operator_records import DeviceArray

# Workspace rows start behind so many history rows, or a multiple: the smallest row, the scales of
# one head, has 4 bytes, so every plane's workspace is at a multiple of 256, as TensorRT wants of
# whatever it is given.
ROW_STEP = 64


def workspace_row(capacity: int) -> int:
    """The row of every plane at which the workspace of a buffer of ``capacity`` rows begins."""
    return -(-capacity // ROW_STEP) * ROW_STEP


class GpuKVBuffer:
    """As :class:`KVBuffer`: ``history`` and ``workspace`` by tensor name, all at multiples of
    256."""

    def __init__(
        self, nodes: Sequence[Node], capacity: int, max_width: int, device: GpuDevice
    ) -> None:
        self.capacity = capacity
        self.history: dict[str, DeviceArray] = {}
        self.workspace: dict[str, DeviceArray] = {}
        self._max_width = max_width
        self._device = device
        self._workspace_at = workspace_row(capacity)
        slots = self._workspace_at + max_width
        planes, total = kv_planes(nodes, slots)
        self.block = device.allocate(total, f"a KV buffer of {slots} rows")
        records = []
        for plane in planes:
            dtype, (_, *row) = plane.spec
            base = self.block.address + plane.offset
            row_bytes = math.prod(row) * np.dtype(dtype).itemsize
            self.history[plane.history] = DeviceArray(base, dtype, (capacity, *row))
            self.workspace[plane.rows] = DeviceArray(
                base + self._workspace_at * row_bytes, dtype, (max_width, *row)
            )
            records.append(abi.KVPlane(base, row_bytes))
        self._records = (abi.KVPlane * len(records))(*records)
        self._series = _series(
            [(each.base - self.block.address, each.row_bytes) for each in records]
        )

    def promote(self, rows: Sequence[int], at: int, library: StepLibrary) -> None:
        """Enqueues that history rows ``at, at+1, ...`` take workspace rows ``rows``. ValueError for
        rows outside them."""
        check_promotion(rows, at, self.capacity, self._max_width)
        if len(rows):
            library.promote(
                self._records,
                len(self._records),
                self._workspace_at,
                rows,
                at,
                self._device.stream,
            )

    def copy_history(self, other: GpuKVBuffer, rows: int, first: int = 0) -> None:
        """Enqueues a copy of history rows ``first .. rows - 1`` of ``other``, whose planes are the
        same. ValueError if either has fewer."""
        check_copy(first, rows, other.capacity, self.capacity)
        if rows == first:
            return
        with self._device.ordered():
            for mine, theirs in zip(self._series, other._series, strict=True):
                self._device.copy(
                    other.block, theirs.rows(first, rows), self.block, mine.rows(first, rows)
                )


@dataclass(frozen=True)
class _Series:
    """Planes of equal rows at equal distances, such as one of every layer: one copy serves all."""

    at: int
    count: int
    row_bytes: int
    stride: int

    def rows(self, first: int, end: int) -> Pieces:
        size = (end - first) * self.row_bytes
        return Pieces(self.at + first * self.row_bytes, self.count, size, self.stride)


def _series(planes: Sequence[tuple[int, int]]) -> list[_Series]:
    """The fewest series that take turns in ``planes``, (offset, bytes of a row) each."""
    for turns in range(1, len(planes)):
        found = [_one_series(planes[start::turns]) for start in range(turns)]
        even = [series for series in found if series is not None]
        if len(even) == turns:
            return even
    return [_Series(offset, 1, row_bytes, row_bytes) for offset, row_bytes in planes]


def _one_series(planes: Sequence[tuple[int, int]]) -> _Series | None:
    """``planes`` as one series, where they are."""
    (at, row_bytes), *rest = planes
    stride = rest[0][0] - at if rest else row_bytes
    for turn, plane in enumerate(planes):
        if plane != (at + turn * stride, row_bytes):
            return None
    return _Series(at, len(planes), row_bytes, stride)
