"""The mixture has the files that the training recipe reads."""

from __future__ import annotations

import re
from typing import Any

from .conftest import TRAINING


def test_the_recipe_reads_the_files_of_the_mixture(recipe: Any) -> None:
    text = (TRAINING / "recipe.toml").read_text(encoding="utf-8")
    files = re.findall(r'^file = "(\w+)\.jsonl"', text, re.MULTILINE)
    assert sorted(files) == sorted(recipe("mixture").MIXTURE)
