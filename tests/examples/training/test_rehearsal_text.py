"""The rehearsal that the README names: its text fits its recipe, and is the same every time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bitmtp_edge.export.training.recipe import read_recipe

if sys.version_info < (3, 11):
    pytest.importorskip("tomli", reason="tomli is not installed: it comes with the extra 'train'")

TRAINING = Path(__file__).parents[3] / "examples" / "training"


def write_text(folder: Path) -> Path:
    subprocess.run([sys.executable, TRAINING / "rehearsal_text.py", folder], check=True)
    return folder


def test_its_text_is_what_its_recipe_reads(tmp_path: Path) -> None:
    recipe = read_recipe(TRAINING / "rehearsal.toml")
    assert recipe.student.chat_template is not None
    assert (TRAINING / recipe.student.chat_template).is_file()
    folder = write_text(tmp_path / "text")
    files = {source.file for source in recipe.sources.values()}
    assert {path.name for path in folder.iterdir()} == files
    (name,) = files
    text = (folder / name).read_text(encoding="utf-8")
    first = json.loads(text.splitlines()[0])["messages"]
    assert [turn["role"] for turn in first] == ["user", "assistant"]
    numbers = [int(word) for word in first[1]["content"].split()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert first[0]["content"] == f"Count on from {numbers[0]}."
    assert (write_text(tmp_path / "again") / name).read_text(encoding="utf-8") == text
