"""The KV buffer of one segment in host memory: ``capacity`` history rows, then the workspace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..operators import Node, Spec, kv_row_specs

ALIGNMENT = 256

# Attention's ports of a plane: its history, and the new rows that promotion makes part of it.
KV_PORTS = (
    ("history", "new_rows"),
    ("history_refinement", "new_refinement"),
    ("history_scale", "new_scale"),
)


def aligned_bytes(size: int, purpose: str) -> NDArray[np.uint8]:
    """Zeroed bytes at an address that is a multiple of 256. UserError if there is no memory for
    ``purpose``."""
    try:
        raw = np.zeros(size + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError):  # ValueError: more than NumPy can count
        raise UserError(
            f"no memory for {purpose} ({size / 2**20:.0f} MiB): use a shorter context"
        ) from None
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


@dataclass(frozen=True)
class KVPlane:
    """One plane of a KV buffer. history, rows: names of the tensors that are its history and its
    workspace. spec: of both together. offset: in the buffer, in bytes."""

    history: str
    rows: str
    spec: Spec
    offset: int


def kv_planes(nodes: Sequence[Node], slots: int) -> tuple[list[KVPlane], int]:
    """The planes of ``slots`` rows that the attention nodes among ``nodes`` ask for, and the bytes
    of them all."""
    planes, end = [], 0
    for node in nodes:
        if node.op == "NestedKVAttention":
            for (history, rows), spec in zip(
                KV_PORTS, kv_row_specs(node.attributes, slots), strict=False
            ):
                planes.append(KVPlane(node.input(history), node.output(rows), spec, end))
                end += _bytes(spec)
    return planes, end


def check_promotion(rows: Sequence[int], at: int, capacity: int, max_width: int) -> None:
    """ValueError where workspace rows ``rows`` of a buffer, or history rows ``at, at+1, ...``, are
    outside it."""
    if not 0 <= at <= capacity - len(rows):
        raise ValueError(f"{len(rows)} rows at {at} are not history of {capacity}")
    if len(rows) and not 0 <= min(rows) <= max(rows) < max_width:
        raise ValueError(f"{list(rows)} are not rows of {max_width}")


def check_copy(first: int, rows: int, capacity: int, to: int) -> None:
    """ValueError where history rows ``first .. rows - 1`` are not in a buffer of ``capacity`` and
    one of ``to`` rows."""
    if not 0 <= first <= rows <= min(capacity, to):
        raise ValueError(f"{capacity} history rows to {to}: {first} to {rows} do not fit")


class KVBuffer:
    """Planes of every layer, slot-major: ``history`` and ``workspace`` views by tensor name.

    capacity: history rows. max_width: workspace rows. nodes: the graph's nodes, whose attention
    nodes name and shape the planes.
    """

    def __init__(self, nodes: Sequence[Node], capacity: int, max_width: int) -> None:
        self.capacity = capacity
        self.max_width = max_width
        self.planes: list[NDArray[np.generic]] = []
        self.history: dict[str, NDArray[np.generic]] = {}
        self.workspace: dict[str, NDArray[np.generic]] = {}
        slots = capacity + max_width
        planes, size = kv_planes(nodes, slots)
        block = aligned_bytes(size, f"a KV buffer of {slots} rows")
        for plane in planes:
            dtype, shape = plane.spec
            array = np.frombuffer(block, dtype, math.prod(shape), plane.offset).reshape(shape)
            self.planes.append(array)
            self.history[plane.history] = array[:capacity]
            self.workspace[plane.rows] = array[capacity:]

    def promote(self, rows: Sequence[int], at: int) -> None:
        """Copies workspace rows ``rows`` to history rows ``at, at+1, ...``. ValueError for rows
        outside them."""
        check_promotion(rows, at, self.capacity, self.max_width)
        for history, workspace in zip(self.history.values(), self.workspace.values(), strict=True):
            history[at : at + len(rows)] = workspace[list(rows)]

    def copy_history(self, other: KVBuffer, rows: int) -> None:
        """Takes the first ``rows`` history rows of ``other``. ValueError if either has fewer."""
        check_copy(0, rows, other.capacity, self.capacity)
        for mine, theirs in zip(self.planes, other.planes, strict=True):
            mine[:rows] = theirs[:rows]


def _bytes(spec: Spec) -> int:
    dtype, shape = spec
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT
