"""Run the demo on a terminal of its own and draw what it shows as an SVG.

Usage: python tools/demo_picture.py BUNDLE PICTURE.svg

The picture plays what the terminal showed, and stays as it ends; a viewer without animations shows
the end.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"
COLUMNS, LINES = 92, 120  # as many lines as the demo writes: it redraws what is in sight
CELL, LINE, SIZE, PAD = 8.0, 18, 13, 18
BACKGROUND, TEXT = "#10151c", "#d5dbe3"
STYLES = {
    "1": 'fill="#ffffff" font-weight="bold"',
    "2": 'fill="#7d8896"',
    "4": 'text-decoration="underline"',
    "32": 'fill="#7ee081"',
    "36": 'fill="#6fc3ff"',
}
ANIMATION = (
    "<style>@keyframes hide{from,to{opacity:0}}text{animation-name:hide}"
    "@media(prefers-reduced-motion:reduce){text{animation-name:none}}</style>"
)
SEQUENCE = re.compile(r"\x1b\[([\d;]*)([A-Za-z])|(.)", re.DOTALL)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # what XML cannot hold


class Cell(NamedTuple):
    """A character, its style, and the second since when it has stood there."""

    character: str
    style: str
    since: float


class Span(NamedTuple):
    column: int
    style: str
    text: str
    since: float


class Terminal:
    """The lines that a program wrote. It knows the escape sequences that the demo uses."""

    def __init__(self) -> None:
        self.lines: list[list[Cell]] = [[]]
        self._row = self._column = 0
        self._style = ""
        self._erased: list[Cell] = []

    def write(self, text: str, now: float) -> None:
        for parameter, final, character in SEQUENCE.findall(text):
            if character == "\n":
                self._move(self._row + 1)
                self._column = 0
                if self._row == len(self.lines):
                    self.lines.append([])
            elif character == "\r":
                self._column = 0
            elif character:
                self._put(Cell(character, self._style, now))
            elif final == "A":
                self._move(max(0, self._row - int(parameter or 1)))
            elif final == "K":
                line = self.lines[self._row]
                self._erased = line[:]
                del line[self._column :]
            elif final == "m":
                self._style = parameter.strip("0;")

    def _move(self, row: int) -> None:
        self._row = row
        self._erased = []

    def _put(self, cell: Cell) -> None:
        """Writing a cell anew as it was leaves it as old as it was."""
        line, at = self.lines[self._row], self._column
        line.extend(Cell(" ", "", cell.since) for _ in range(at + 1 - len(line)))
        before = self._erased[at] if at < len(self._erased) else line[at]
        line[at] = before if before[:2] == cell[:2] else cell
        self._column += 1


def record(
    command: list[str], columns: int = COLUMNS, lines: int = LINES
) -> Iterator[tuple[str, float]]:
    """What ``command`` writes to a terminal of its own, and when. Exits where it fails."""
    terminal, ours = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    left_out = ("NO_COLOR", "COLUMNS", "LINES")
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    environment["TERM"] = "xterm"
    unread = b""
    began = perf_counter()
    with subprocess.Popen(command, stdout=ours, stderr=ours, env=environment) as process:
        os.close(ours)
        while block := _read(terminal):
            # Whole lines: no sequence and no character lies across two of them.
            whole, end, unread = (unread + block).rpartition(b"\n")
            if end:
                yield (whole + end).decode("utf-8"), perf_counter() - began
    os.close(terminal)
    if process.returncode:
        sys.exit(process.returncode)
    yield unread.decode("utf-8"), perf_counter() - began


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux tells that the other side of a terminal was closed
        return b""


def spans(line: list[Cell]) -> Iterator[Span]:
    """The parts of a line that look alike and came at once, without blanks around them."""
    column = 0
    for (style, since), cells in groupby(line, key=lambda cell: (cell.style, cell.since)):
        text = "".join(cell.character for cell in cells)
        if text.strip():
            blank = len(text) - len(text.lstrip())
            yield Span(column + blank, style, text.strip(), since)
        column += len(text)


def draw(lines: list[list[Cell]]) -> str:
    """The SVG of a terminal's lines. Those that end it blank are left out."""
    drawn = [list(spans(line)) for line in lines]
    while drawn and not drawn[-1]:
        drawn.pop()
    began = min((span.since for line in drawn for span in line), default=0.0)
    width, height = round(2 * PAD + COLUMNS * CELL), 2 * PAD + LINE * len(drawn)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, '
        f'\'DejaVu Sans Mono\', monospace" font-size="{SIZE}" fill="{TEXT}">',
        "<title>bitmtp-edge: decoding token by token beside the hybrid policy</title>",
        ANIMATION,
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
    ]
    for number, line in enumerate(drawn):
        y = PAD + LINE * number + SIZE
        for column, style, text, since in line:
            # Words keep their columns in any font: each part says how wide it is.
            size = len(text) * CELL
            look = " ".join(STYLES[each] for each in style.split(";") if each in STYLES)
            text = escape(CONTROL.sub("?", text))
            parts.append(
                f'<text x="{PAD + column * CELL:g}" y="{y}" textLength="{size:g}" '
                f'lengthAdjust="spacingAndGlyphs" xml:space="preserve" '
                f'style="animation-duration:{since - began:.2f}s" {look}>{text}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def picture_of(command: list[str]) -> str:
    """The SVG of what ``command`` shows."""
    terminal = Terminal()
    # Read only when all is written: the demo's rates are those of a machine that does nothing else.
    for text, now in list(record(command)):
        terminal.write(text, now)
    return draw(terminal.lines)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} BUNDLE PICTURE.svg")
    bundle, picture = sys.argv[1:]
    drawn = picture_of([sys.executable, str(DEMO), bundle])
    Path(picture).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
