"""When drafts fare so much otherwise that the text must have changed."""

from __future__ import annotations

import random

from bitmtp_edge.decode.surprise import Surprise

FAIR = [0.9**i for i in range(1, 9)]


def lengths(draw: random.Random, share: float, count: int) -> list[int]:
    """Runs of successes among 8, each of probability ``share``."""
    return [next((i for i in range(8) if draw.random() >= share), 8) for _ in range(count)]


def struck_after(seen: list[int], reach: list[float]) -> int | None:
    surprise = Surprise()
    surprise.expect(reach)
    for count, length in enumerate(seen, 1):
        surprise.see(length)
        if surprise.struck:
            return count
    return None


def test_what_chance_explains_is_no_surprise() -> None:
    """In a stretch between two searches hardly ever."""
    draw = random.Random(0)
    struck = [struck_after(lengths(draw, 0.9, 16), FAIR) for _ in range(300)]
    assert sum(each is not None for each in struck) <= 3


def test_a_text_that_changes_is_one_in_either_direction() -> None:
    draw = random.Random(1)
    for share in (0.3, 0.99):
        struck = [struck_after(lengths(draw, share, 64), FAIR) for _ in range(100)]
        assert all(each is not None for each in struck)


def test_one_block_alone_is_none() -> None:
    sure = [1.0] * 8
    assert struck_after([8] * 50 + [0], sure) is None
    assert struck_after([8] * 50 + [0, 0], sure) == 52


def test_expecting_anew_forgets() -> None:
    surprise = Surprise()
    surprise.expect([1.0] * 8)
    surprise.see(0)
    surprise.see(0)
    assert surprise.struck
    surprise.expect([1.0] * 8)
    assert not surprise.struck
