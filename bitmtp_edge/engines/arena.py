"""Where the tensors of a static plan lie: one block, shared by those that are never alive
together."""

from __future__ import annotations

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
    placed: list[tuple[int, int, Lifetime]] = []  # start, end
    size = 0
    for name, life in sorted(lifetimes.items(), key=lambda item: (-item[1].bytes, item[0])):
        rounded = -(-life.bytes // ALIGNMENT) * ALIGNMENT
        start = 0
        for other_start, other_end, other in sorted(placed, key=lambda entry: entry[0]):
            if other.first <= life.last and life.first <= other.last:
                if start + rounded <= other_start:
                    break
                start = max(start, other_end)
        offsets[name] = start
        placed.append((start, start + rounded, life))
        size = max(size, start + rounded)
    return offsets, size
