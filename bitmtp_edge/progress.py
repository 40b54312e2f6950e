"""Progress on stderr: a bar on a terminal, a few plain lines in a log."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import TextIO

REDRAW_SECONDS = 0.1
PLAIN_STEPS = 10
WIDEST_BAR = 40


class Progress:
    """Counts `total` units of work and shows how far it has come.

    On a terminal it redraws one line, at most ten times a second. Elsewhere it prints a line each
    time another tenth of the work is done, so that a log stays short.

        with Progress(len(tensors), "quantize", "tensors") as progress:
            for tensor in tensors:
                ...
                progress.advance()
    """

    def __init__(
        self, total: int, label: str, unit: str = "steps", stream: TextIO | None = None
    ) -> None:
        self.total = total
        self.label = label
        self.unit = unit
        self.done = 0
        self.note = ""  # shown behind the count
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._started = time.monotonic()
        self._drawn_at = float("-inf")
        self._steps_printed = 0

    def __enter__(self) -> Progress:
        self._show()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._terminal:
            # The last state must stay readable above whatever is printed next, an error included.
            self._draw()
            self._write("\n")

    def tell(self, line: str) -> None:
        """Writes ``line`` on a line of its own, above the bar."""
        self._write(f"\r{line}\x1b[K\n" if self._terminal else f"{line}\n")
        if self._terminal:
            self._draw()

    def advance(self, count: int = 1) -> None:
        """Record that `count` more units are done."""
        self.done += count
        self._show()

    def _fraction(self) -> float:
        return min(self.done / self.total, 1.0) if self.total > 0 else 1.0

    def _show(self) -> None:
        if self._terminal:
            if time.monotonic() - self._drawn_at >= REDRAW_SECONDS:
                self._draw()
            return
        steps = int(self._fraction() * PLAIN_STEPS)
        if steps > self._steps_printed:
            self._steps_printed = steps
            self._write(f"{self.label}: {self._count()}\n")

    def _count(self) -> str:
        elapsed = time.monotonic() - self._started
        count = f"{self._fraction():4.0%}  {self.done}/{self.total} {self.unit}  {elapsed:.0f} s"
        return f"{count}  {self.note}" if self.note else count

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        count = self._count()
        columns = shutil.get_terminal_size().columns
        width = min(WIDEST_BAR, columns - len(self.label) - len(count) - 6)
        filled = int(self._fraction() * width)
        bar = f" [{'#' * filled}{'.' * (width - filled)}]" if width > 0 else ""
        line = f"{self.label}{bar} {count}"[: max(columns - 1, 0)]  # one that wraps stays behind
        self._write(f"\r{line}\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
