"""Replies of the teacher: what is asked, what is kept, and going on after a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import EVAL


@pytest.mark.parametrize(
    ("text", "ended", "is_list", "kept"),
    [
        ("Bread is baked from flour.", True, False, "Bread is baked from flour."),
        ("Bread is baked from flour. It is al", False, False, "Bread is baked from flour."),
        ("Bread is baked from flour and wat", False, False, None),
        ("1. Knead it well.\n2. Let it rise.\n3. Bake it.", True, True, "="),
        ("1. Knead it well.\n2. Let it rise.", True, True, None),
        ("It is a food and it is a food and it is a food and it is a food.", True, False, None),
        ("I am SmolLM, and I like bread a lot.", True, False, None),
        ("Bread is a versatile and versatile food.", True, False, None),
        ("Bread.", True, False, None),
    ],
)
def test_replies_worth_learning(
    recipe: Any, text: str, ended: bool, is_list: bool, kept: str | None
) -> None:
    expected = text if kept == "=" else kept
    assert recipe("make_replies").usable(text, ended, is_list) == expected


def test_the_teacher_is_asked_in_a_fixed_order(recipe: Any, wordnet: Path) -> None:
    make_replies = recipe("make_replies")
    asked = make_replies.requests(wordnet)
    assert asked == make_replies.requests(wordnet)
    texts = {request.text for request in asked}
    assert len(texts) == len(asked) > 500
    held_out = {json.loads(line)["prompt"] for line in (EVAL / "chat.jsonl").open()}
    assert not texts & held_out
    # An igloo is named too seldom.
    assert not [request for request in asked if request.hint]


def test_replies_go_on_behind_the_last_whole_line(recipe: Any, tmp_path: Path) -> None:
    make_replies, out = recipe("make_replies"), tmp_path / "replies.jsonl"
    assert make_replies.resume(out) == 0
    out.write_text('{"number": 6, "messages": []}\n{"number": 7, "mess')
    assert make_replies.resume(out) == 7
    assert out.read_text() == '{"number": 6, "messages": []}\n'
