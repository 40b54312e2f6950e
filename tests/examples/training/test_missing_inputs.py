"""What the scripts say without the documents and replies that they read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        ("make_corpus", ["--only", "chat"], "--docs: need"),
        ("make_corpus", ["--only", "chat", "--docs", "."], "--replies: need"),
        ("make_replies", ["--bundle", "none", "--docs", "none"], "--docs: need"),
        ("make_replies", ["--bundle", "none", "--docs", "."], "none"),
    ],
)
def test_missing_inputs_are_told_in_one_line(
    recipe: Any,
    wordnet: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(wordnet)
    monkeypatch.setattr(sys, "argv", [script, "out", *options])
    with pytest.raises(SystemExit) as stopped:
        recipe(script).main()
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
