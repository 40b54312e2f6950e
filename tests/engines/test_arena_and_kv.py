"""Where tensors of a plan lie, and the KV buffer."""

from __future__ import annotations

import numpy as np
import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.arena import ALIGNMENT, Lifetime, place
from bitmtp_edge.engines.kv_buffer import KVBuffer, aligned_bytes
from bitmtp_edge.errors import UserError


def test_tensors_that_live_together_never_overlap() -> None:
    random = np.random.default_rng(6)
    for _ in range(50):
        lives = {}
        for i in range(40):
            first = int(random.integers(0, 30))
            last = first + int(random.integers(0, 8))
            lives[f"t{i}"] = Lifetime(int(random.integers(1, 5000)), first, last)
        offsets, size = place(lives)
        assert offsets.keys() == lives.keys()
        spans = {n: (offsets[n], offsets[n] + life.bytes) for n, life in lives.items()}
        for name, (start, end) in spans.items():
            assert start % ALIGNMENT == 0 and start >= 0 and end <= size
            for other, (other_start, other_end) in spans.items():
                a, b = lives[name], lives[other]
                if name != other and a.first <= b.last and b.first <= a.last:
                    assert end <= other_start or other_end <= start, (name, other)
        assert size % ALIGNMENT == 0
        busiest = max(
            sum(life.bytes for life in lives.values() if life.first <= t <= life.last)
            for t in range(40)
        )
        assert size >= busiest


def test_a_chain_takes_two_places() -> None:
    lives = {f"t{i}": Lifetime(1000, i, i + 1) for i in range(10)}
    offsets, size = place(lives)
    assert size == 2 * 1024
    assert set(offsets.values()) == {0, 1024}
    assert place({}) == ({}, 0)


def test_aligned_bytes() -> None:
    for size in (1, 255, 4096):
        block = aligned_bytes(size, "a test")
        assert block.size == size and block.ctypes.data % 256 == 0 and not block.any()
    for size in (1 << 60, 1 << 70):
        with pytest.raises(UserError, match="no memory for a test"):
            aligned_bytes(size, "a test")


@pytest.mark.parametrize(("name", "stored"), [("tiny_bundle", 3), ("fp16_bundle", 1)])
def test_the_planes_of_a_buffer(name: str, stored: int, request: pytest.FixtureRequest) -> None:
    bundle: Bundle = request.getfixturevalue(name)
    buffer = KVBuffer(bundle.nodes("verify"), 12, 5)
    assert len(buffer.planes) == len(buffer.history) == 2 * stored
    assert {array.shape[0] for array in buffer.history.values()} == {12}
    assert {array.shape[0] for array in buffer.workspace.values()} == {5}
    for plane in buffer.planes:
        assert plane.shape[0] == 17 and plane.ctypes.data % 256 == 0
    for index, array in enumerate(buffer.workspace.values()):
        array[...] = np.arange(5)[:, None] + 10 * index
    buffer.promote([3, 0], 4)
    for index, array in enumerate(buffer.history.values()):
        assert (array[4] == 3 + 10 * index).all() and (array[5] == 10 * index).all()
        assert (array[:4] == 0).all() and (array[6:] == 0).all()
    grown = KVBuffer(bundle.nodes("verify"), 30, 5)
    grown.copy_history(buffer, 6)
    for mine, theirs in zip(grown.history.values(), buffer.history.values(), strict=True):
        np.testing.assert_array_equal(mine[:6], theirs[:6])
        assert not mine[6:].any()
