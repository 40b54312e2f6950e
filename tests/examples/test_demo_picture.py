"""The picture made of the demo."""

from __future__ import annotations

import runpy
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

DEMOS = Path(__file__).parents[2] / "examples"
PICTURE = Path(__file__).parents[2] / "tools" / "demo_picture.py"


@pytest.fixture(scope="module")
def picture() -> dict[str, Any]:
    return runpy.run_path(str(PICTURE))


def lines_of(picture: dict[str, Any], *pieces: tuple[str, float]) -> list[Any]:
    terminal = picture["Terminal"]()
    for text, now in pieces:
        terminal.write(text, now)
    lines: list[Any] = terminal.lines
    return lines


def test_it_shows_the_colours_of_a_terminal(picture: dict[str, Any]) -> None:
    script = (
        "from screen import Screen, wrap; screen = Screen(); assert screen.side_by_side; "
        "screen.redraw(wrap([('one', '1')], 40), wrap([('two words', '4;36')], 40))"
    )
    command = ["env", f"PYTHONPATH={DEMOS}", sys.executable, "-c", script]
    drawn = ElementTree.fromstring(picture["picture_of"](command))
    texts = {text.text: text for text in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert list(texts) == ["one", "│", "two words"]
    assert texts["one"].get("fill") == "#ffffff"
    assert texts["two words"].get("fill") == "#6fc3ff"
    assert texts["two words"].get("text-decoration") == "underline"
    assert texts["two words"].get("x") == str(18 + 47 * 8)


def test_a_demo_that_fails_draws_nothing(picture: dict[str, Any]) -> None:
    with pytest.raises(SystemExit) as end:
        list(picture["record"]([sys.executable, "-c", "import sys; sys.exit(3)"]))
    assert end.value.code == 3


def test_spans_keep_their_columns_and_times(picture: dict[str, Any]) -> None:
    [line] = lines_of(picture, ("  ab \x1b[4;32mcd\x1b[0m", 1.0), ("  e", 2.0))
    assert list(picture["spans"](line)) == [
        (2, "", "ab", 1.0),
        (5, "4;32", "cd", 1.0),
        (9, "", "e", 2.0),
    ]


def test_what_is_drawn_over_as_it_was_keeps_its_time(picture: dict[str, Any]) -> None:
    first, second, _ = lines_of(
        picture, ("ab\r\ncd gone\r\n", 1.0), ("\x1b[2A\r\x1b[Kab\r\n\x1b[Kcx\r\n", 2.0)
    )
    assert list(picture["spans"](first)) == [(0, "", "ab", 1.0)]
    assert list(picture["spans"](second)) == [(0, "", "c", 1.0), (1, "", "x", 2.0)]


def test_text_is_escaped(picture: dict[str, Any]) -> None:
    drawn = picture["draw"](lines_of(picture, ("a < b\x02\r\n", 0.0)))
    assert "a &lt; b?" in drawn
    ElementTree.fromstring(drawn)
