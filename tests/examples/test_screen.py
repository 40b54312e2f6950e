"""Text that wraps, in one column and in two."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest

SCREEN = Path(__file__).parents[2] / "examples" / "screen.py"


@pytest.fixture(scope="module")
def module() -> dict[str, Any]:
    return runpy.run_path(str(SCREEN))


@pytest.fixture
def screen(module: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(os.environ, "COLUMNS", "20")
    monkeypatch.setitem(os.environ, "LINES", "4")
    return module["Screen"]()


def plain(lines: list[list[tuple[str, str]]]) -> list[str]:
    return ["".join(character for character, _ in line) for line in lines]


def test_text_wraps_in_its_column_and_keeps_its_own_lines(
    screen: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    screen.column("ar")
    for piece in ("one tw", "o three", " four:\n  fi", "ve\n\n", "six 123456789012345 \n\n"):
        screen.stream(piece)
    screen.end()
    shown = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in shown] == [
        "ar      one two",
        "        three four:",
        "          five",
        "",
        "        six",
        "        123456789012",
        "        345",
    ]


@pytest.mark.parametrize(
    ("columns", "term", "both"),
    [("80", "xterm", True), ("66", "xterm", False), ("80", "dumb", False)],
)
def test_two_columns_need_room_and_a_cursor_that_moves(
    module: dict[str, Any], monkeypatch: pytest.MonkeyPatch, columns: str, term: str, both: bool
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", term)
    assert not module["Screen"]().side_by_side
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert module["Screen"]().side_by_side is both


def test_wrapped_lines(module: dict[str, Any]) -> None:
    wrap = module["wrap"]
    pieces = [("one t", "1"), ("wo three\nabcdefghijk ", "2"), ("end", "")]
    assert plain(wrap(pieces, 8)) == ["one two", "three", "abcdefgh", "ijk end"]
    assert wrap(pieces, 8)[0][4:] == [("t", "1"), ("w", "2"), ("o", "2")]
    assert plain(wrap([("12345678 9", "")], 8)) == ["12345678", "9"]
    assert plain(wrap([], 8)) == [""]


def test_a_model_writes_no_control_characters(
    module: dict[str, Any], screen: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plain(module["wrap"]([("a\x1b[2J\tb", "")], 20)) == ["a?[2J    b"]
    screen.column()
    screen.stream("a\x1b[2J")
    screen.end()
    assert capsys.readouterr().out.strip() == "a?[2J"


def test_two_texts_are_drawn_over_and_stay_in_the_end(
    screen: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(*texts: str) -> list[list[tuple[str, str]]]:
        return [[(character, "") for character in text] for text in texts]

    screen.redraw(lines("a"), lines("b", "c"))
    screen.redraw(lines("1", "2", "3", "4", "5"), lines("b"))
    screen.redraw(lines("1", "2", "3", "4", "5"), lines("b"), last=True)
    screen.redraw(lines("new"), lines("b"))
    out = capsys.readouterr().out.replace("\x1b[K", "")
    first, second, last = out.split("\x1b[")
    assert first == "a        │ b\n         │ c\n"
    assert second == "2A\r3        │\n4        │\n5        │\n"
    assert last.startswith("3A\r1        │ b\n2        │\n")
    assert last.endswith("5        │\nnew      │ b\n")
