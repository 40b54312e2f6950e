"""Where the tensors of a static plan lie: one block, shared by those that are never alive
together."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass

ALIGNMENT = 256


@dataclass(frozen=True)
class Lifetime:
    """Bytes of a tensor, and the first and last step (both included) at which it must keep its
    value."""

    bytes: int
    first: int
    last: int


def place(lifetimes: Mapping[str, Lifetime]) -> tuple[dict[str, int], int]:
    """Offsets of the tensors and the size of the block, both multiples of 256.

    Largest first, each at the lowest offset where it overlaps no tensor of an overlapping lifetime.
    """
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, int, int]] = []  # start, end, first, last; ascending
    size = 0
    for name, life in sorted(lifetimes.items(), key=lambda item: (-item[1].bytes, item[0])):
        rounded = -(-life.bytes // ALIGNMENT) * ALIGNMENT
        start = 0
        for other_start, other_end, first, last in placed:
            if first <= life.last and life.first <= last:
                if start + rounded <= other_start:
                    break
                start = max(start, other_end)
        offsets[name] = start
        insort(placed, (start, start + rounded, life.first, life.last))
        size = max(size, start + rounded)
    return offsets, size
