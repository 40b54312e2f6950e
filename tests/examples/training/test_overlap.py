"""Overlap with evaluation text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def test_ten_words_in_a_row_are_an_overlap(recipe: Any, tmp_path: Path) -> None:
    overlap = recipe("overlap")
    (tmp_path / "eval.jsonl").write_text(
        json.dumps({"cases": ["One two three four, five six seven eight nine ten eleven."]}) + "\n"
    )
    blocked = overlap.blocked_grams([tmp_path])
    assert overlap.grams("so: TWO three (four) five six seven eight nine ten eleven!") & blocked
    assert not overlap.grams("two three four five six seven eight nine ten, not eleven") & blocked
