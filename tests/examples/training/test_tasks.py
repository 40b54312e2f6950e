"""The scored tasks: templates that are held out, and the answer that a reply ends in."""

from __future__ import annotations

from itertools import islice
from random import Random
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("3 + 4 = 7\n#### 7", "7"),
        ("#### 1\nno, better:\n#### 78,000.\n", "78000"),
        ("first\nthe, last, line.", "the last line"),
        ("", ""),
    ],
)
def test_final_answer(recipe: Any, reply: str, answer: str) -> None:
    assert recipe("tasks").final_answer(reply) == answer


@pytest.mark.usefixtures("reasoning_gym")
def test_the_held_out_templates_are_a_seeded_draw(recipe: Any) -> None:
    tasks = recipe("tasks")
    served = list(tasks.gsm_templates())
    assert sorted(Random(20250).sample(served, 15)) == list(tasks.HELD_OUT_TEMPLATES)
    assert not set(tasks.seen_templates()) & set(tasks.HELD_OUT_TEMPLATES)
    assert len(tasks.seen_templates()) == len(served) - 15 - len(tasks.PUBLIC_TEMPLATES)


@pytest.mark.usefixtures("reasoning_gym")
@pytest.mark.parametrize("task", ["gsm", "arithmetic", "legs", "sorting", "reversal"])
def test_replies_end_in_their_answer(recipe: Any, task: str) -> None:
    tasks, worked = recipe("tasks"), recipe("worked")
    for item in islice(tasks.TASKS[task](Random(3)), 300):
        assert tasks.final_answer(item.reply) == tasks.final_answer(item.answer)
        assert all(equation.holds() for _, equation in worked.equations(item.reply))
