"""Sums and lists in words."""

from __future__ import annotations

import re
from random import Random
from typing import Any


def test_spoken_sums_and_lists_are_right(recipe: Any) -> None:
    spoken = recipe("spoken")
    for seed in range(400):
        question, working = spoken.spoken_sum(Random(seed))
        a, b = map(int, re.findall(r"\d+", question))
        value = int(working.split("=")[-1])
        assert {eval(link) for link in working.split("=")} == {value}
        assert value in (a + b, abs(a - b), a * b)
        question, answer = spoken.spoken_list(Random(seed))
        items = answer.split(", ")
        assert all(item in question for item in items) and len(items) in (3, 4, 5)
        if items[0].isdigit():
            down = "desc" in question or "largest to" in question
            assert items == sorted(items, key=int, reverse=down)
        else:
            assert ", ".join(items[::-1]) in question
