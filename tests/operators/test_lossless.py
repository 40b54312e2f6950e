"""In the verify role a row has the same bits whatever the window around it (docs/numerics.md).

The expected bits are those of steps of one token, with all positions before it in history.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from .attention_case import Shape, pack_mask
from .harness import THREADS, Arrays, rng
from .small_model import VOCABULARY, Result, SmallModel, Window

LENGTH = 150  # past the first chunk of 128
SHAPES = {
    "nested": Shape(3, 1, 64, "nested"),
    "fp16": Shape(4, 2, 64, "fp16", ("q_norm", "k_norm", "qkv_bias", "sub_norm")),
}


class Sequence:
    """Tokens, the model, and what steps of one token give for every position."""

    def __init__(self, kv: str) -> None:
        g = rng("lossless", kv)
        self.g = g
        self.model = SmallModel(g, SHAPES[kv], LENGTH + 40)
        self.tokens = g.integers(0, VOCABULARY, LENGTH, dtype=np.int32)
        self.history = self.model.no_history(LENGTH)
        self.expected: list[bytes] = []
        for position in range(LENGTH):
            one = Window(
                self.tokens[position : position + 1],
                np.array([position], np.int32),
                np.ones((1, 1), np.int32),
                position,
                LENGTH,
            )
            result = self.model.step(one, self.history, 1)
            self.expected.append(result.bits(0))
            for past, new in zip(self.history, result.kv, strict=True):
                for port, rows in new.items():
                    past[port][position] = rows[0]

    def causal(self, start: int, used: int, width: int, capacity: int, threads: int) -> Result:
        """A window over positions start .. start+used-1; the rest of its slots are spare."""
        seen = np.eye(width, dtype=bool)
        seen[:used, :used] |= np.tri(used, dtype=bool)
        ids = self.g.integers(0, VOCABULARY, width, dtype=np.int32)
        ids[:used] = self.tokens[start : start + used]
        positions = np.full(width, start, np.int32)
        positions[:used] += np.arange(used, dtype=np.int32)
        window = Window(ids, positions, pack_mask(seen), start, capacity)
        return self.model.step(window, self.history, threads)


@functools.cache
def sequence(kv: str) -> Sequence:
    return Sequence(kv)


@pytest.mark.parametrize("kv", SHAPES)
@pytest.mark.parametrize("position", (0, 1, 16, 127, 128, 129, 145))
def test_every_split_of_history_and_window(kv: str, position: int) -> None:
    s = sequence(kv)
    for slot in range(min(position, 17) + 1):
        start = position - slot
        threads = THREADS[slot % len(THREADS)]
        capacity = max(start, 1) if slot % 2 else 512
        after = int(s.g.integers(0, min(16, LENGTH - position)))
        spare = int(s.g.integers(0, 4))
        used = slot + 1 + after
        result = s.causal(start, used, used + spare, capacity, threads)
        for other in range(used):
            label = f"slot {other} of {used}+{spare}, history {start} of {capacity}"
            assert result.bits(other) == s.expected[start + other], f"{label}, {threads} threads"


@pytest.mark.parametrize("kv", SHAPES)
@pytest.mark.parametrize("start", (0, 120, 128))
def test_one_window_at_every_thread_count(kv: str, start: int) -> None:
    s = sequence(kv)
    for width in (1, 2, 8, 9, 17, 33) if start == 0 else (1, 8, 20):
        for threads in THREADS:
            for capacity in (LENGTH, 256):
                result = s.causal(start, width, width, capacity, threads)
                for slot in range(width):
                    assert result.bits(slot) == s.expected[start + slot], (width, threads, slot)


@pytest.mark.parametrize("kv", SHAPES)
@pytest.mark.parametrize("start", (0, 3, 121, 127, 128))
def test_a_path_through_a_tree(kv: str, start: int) -> None:
    """The sequence goes along one path of a tree whose other nodes are noise."""
    s = sequence(kv)
    g = s.g
    for width in (9, 16, 33):
        depth = 7
        path = [0, *sorted(g.choice(np.arange(1, width), depth - 1, replace=False).tolist())]
        seen = np.eye(width, dtype=bool)
        for slot in range(1, width):
            on_path = path[path.index(slot) - 1] if slot in path else None
            parent = int(g.integers(-1, slot)) if on_path is None else on_path
            if parent >= 0:
                seen[slot] |= seen[parent]
        ids = g.integers(0, VOCABULARY, width, dtype=np.int32)
        ids[path] = s.tokens[start : start + depth]
        positions = (start + seen.sum(axis=1) - 1).astype(np.int32)
        window = Window(ids, positions, pack_mask(seen), start, start + 40)
        for threads in THREADS:
            result = s.model.step(window, s.history, threads)
            for step, slot in enumerate(path):
                assert result.bits(slot) == s.expected[start + step], (width, threads, slot)


def test_the_model_is_sensitive() -> None:
    """A token, and a key within reach, change a row: equal bits above are not for lack of input."""
    s = sequence("nested")
    start = 130
    before = s.causal(start, 1, 1, 256, 1).bits(0)
    changed: list[Arrays] = [{p: x.copy() for p, x in kv.items()} for kv in s.history]
    changed[0]["history_refinement"][5] ^= 0x11111111
    one = Window(
        s.tokens[start : start + 1],
        np.array([start], np.int32),
        np.ones((1, 1), np.int32),
        start,
        256,
    )
    assert s.model.step(one, changed, 1).bits(0) != before
    other = (s.tokens[start : start + 1] + 1) % VOCABULARY
    window = Window(other.astype(np.int32), one.positions, one.mask, start, 256)
    assert s.model.step(window, s.history, 1).bits(0) != before
