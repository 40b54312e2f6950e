"""What the demos share: colours where they are wanted, text that wraps as it arrives, two texts
that grow side by side, and how a demo is run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence

from bitmtp_edge.cli import fill_standard_streams
from bitmtp_edge.errors import UserError

LABEL = 8
WIDEST = 100
NARROWEST = 32
GAP = " │ "
BOLD, DIM, GREEN, CYAN = "1", "2", "32", "36"
UNDERLINED = "4;"

Cell = tuple[str, str]
"""A character and its style."""


class Screen:
    """Stdout, as wide as its terminal and at most WIDEST columns."""

    def __init__(self) -> None:
        size = shutil.get_terminal_size()
        self.width = min(size.columns, WIDEST)
        self.coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        moves = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.half = (self.width - len(GAP)) // 2
        self.side_by_side = moves and self.half >= NARROWEST
        """Whether two texts fit, on a terminal whose cursor moves."""
        self._height = size.lines
        self._drawn = 0
        self._column = 0
        self._space = ""
        self._word: list[Cell] = []

    def line(self, text: str = "", style: str = "") -> None:
        print(self._paint(text, style), flush=True)

    def column(self, label: str = "") -> None:
        """Starts a column of text to the right of ``label``."""
        sys.stdout.write(self._paint(label.ljust(LABEL), CYAN))
        self._column = LABEL

    def stream(self, text: str, style: str = "") -> None:
        """More text of the column. A word is held until it ends, since it may need a new line;
        one as long as a line is cut."""
        for character in text:
            if not character.isspace():
                self._word.append((_visible(character), style))
                if len(self._word) == self.width - LABEL:
                    self._end_word()
            else:
                self._end_word()
                self._space += character
        sys.stdout.flush()

    def end(self) -> None:
        """Ends the column; white space at its end is left out."""
        self._end_word()
        self._space = ""
        self.line()

    def note(self, text: str) -> None:
        """A dim text below the column."""
        self.column()
        self.stream(text, DIM)
        self.end()

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """The first column to the left, numbers to the right, the heading bold."""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for index, (first, *rest) in enumerate(rows):
            cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
            self.line("   ".join([first.ljust(widths[0]), *cells]), "" if index else BOLD)

    def redraw(self, left: list[list[Cell]], right: list[list[Cell]], last: bool = False) -> None:
        """Two texts of wrapped lines in place of those drawn before; after the ``last`` they stay.

        Until then only as many of the newest lines as the terminal can move back over.
        """
        count = max(len(left), len(right))
        first = 0 if last else max(0, count - self._height + 1)
        parts = [f"\x1b[{self._drawn}A\r" if self._drawn else ""]
        for row in range(first, count):
            ours, theirs = (text[row] if row < len(text) else [] for text in (left, right))
            blank = " " * (self.half - len(ours))
            line = self._painted(ours) + blank + self._paint(GAP, DIM) + self._painted(theirs)
            parts.append(f"\x1b[K{line.rstrip()}\n")
        sys.stdout.write("".join(parts))
        sys.stdout.flush()
        self._drawn = 0 if last else count - first

    def _end_word(self) -> None:
        if not self._word:
            return
        *ended, space = self._space.replace("\t", "    ").split("\n")
        if not ended and self._column + len(space) + len(self._word) > self.width:
            ended, space = [""], ""
        if ended:
            sys.stdout.write("\n" * len(ended) + " " * LABEL)
            self._column = LABEL
        sys.stdout.write(space + self._painted(self._word))
        self._column += len(space) + len(self._word)
        self._space = ""
        self._word.clear()

    def _painted(self, cells: list[Cell]) -> str:
        return "".join(self._paint(text, style) for text, style in _runs(cells))

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if style and text and self.coloured else text


def wrap(pieces: Sequence[tuple[str, str]], width: int) -> list[list[Cell]]:
    """Lines of at most ``width`` cells, of texts and their styles; longer words are cut."""
    lines: list[list[Cell]] = [[]]
    for text, style in pieces:
        for character in text.replace("\t", "    "):
            if character == "\n":
                lines.append([])
                continue
            line = lines[-1]
            line.append((_visible(character), style))
            if len(line) > width:
                spaces = [at for at, (each, _) in enumerate(line) if each == " "]
                lines.append(line[spaces[-1] + 1 :] if spaces else line[width:])
                del line[spaces[-1] if spaces else width :]
    return lines


def _visible(character: str) -> str:
    """A model may write control characters, which are no terminal's business."""
    return character if character.isprintable() else "?"


def _runs(cells: list[Cell]) -> Iterator[tuple[str, str]]:
    """Neighbours of one style joined."""
    start = 0
    for end in range(1, len(cells) + 1):
        if end == len(cells) or cells[end][1] != cells[start][1]:
            yield "".join(text for text, _ in cells[start:end]), cells[start][1]
            start = end


def run(demo: Callable[[str], int]) -> int:
    """A demo as a command with one argument, the bundle: returns its exit code. What is wrong with
    the bundle is one line on stderr, and 2."""
    fill_standard_streams()
    if len(sys.argv) != 2:
        print(f"usage: {sys.argv[0]} BUNDLE", file=sys.stderr)
        return 2
    try:
        return demo(sys.argv[1])
    except BrokenPipeError:
        # Else the interpreter flushes into the closed pipe once more as it exits, and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (UserError, OSError) as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
        return 130
