"""The modules of examples/training, and what several tests of them read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TRAINING = Path(__file__).parents[3] / "examples" / "training"
EVAL = TRAINING / "eval"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of the recipe by name, and forgets it afterwards."""
    monkeypatch.syspath_prepend(str(TRAINING))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return __import__(name)

    yield load
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(TRAINING) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


@pytest.fixture
def reasoning_gym() -> None:
    """Skips the test where reasoning-gym is not installed."""
    pytest.importorskip("reasoning_gym")


WORDNET = {
    "data.verb": "00000042 29 v 02 snooze 0 drowse 0 001 @ 00014742 v 0000 01 + 02 00 | "
    'sleep lightly; "they snooze after lunch"\n',
    "index.verb": "snooze v 1 1 @ 1 1 00000042\ndrowse v 1 1 @ 1 0 00000042\n",
    "data.noun": "00000051 28 n 01 snooze 0 000 | a short sleep, usually by day\n"
    "00000052 06 n 01 igloo 0 000 | a house of snow\n",
    "index.noun": "snooze n 1 1 @ 1 1 00000051\nigloo n 1 1 @ 1 1 00000052\n",
    "cntlist.rev": "snooze%2:29:00:: 1 5\nsnooze%1:28:00:: 1 2\nigloo%1:06:00:: 1 1\n",
}


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    folder = tmp_path / "usr/share/wordnet"
    folder.mkdir(parents=True)
    for speech in ("noun", "verb", "adj", "adv"):
        for kind in ("data", "index"):
            text = "  1 licence\n" + WORDNET.get(f"{kind}.{speech}", "")
            (folder / f"{kind}.{speech}").write_text(text, encoding="utf-8")
    (folder / "cntlist.rev").write_text(WORDNET["cntlist.rev"], encoding="utf-8")
    return tmp_path
