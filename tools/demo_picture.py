"""Run the demo on a terminal of its own and draw what it shows as an SVG.

Usage: python tools/demo_picture.py BUNDLE PICTURE.svg
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"
COLUMNS = 92
CELL, LINE, SIZE, PAD = 8.0, 18, 13, 18
BACKGROUND, TEXT = "#10151c", "#d5dbe3"
STYLES = {
    "1": 'fill="#ffffff" font-weight="bold"',
    "2": 'fill="#7d8896"',
    "32": 'fill="#7ee081"',
    "36": 'fill="#6fc3ff"',
}
ESCAPE = re.compile(r"\x1b\[(\d*)m")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # what XML cannot hold


def record(command: list[str]) -> str:
    """What ``command`` writes to a terminal of COLUMNS columns. Exits where it fails."""
    terminal, ours = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"COLUMNS": str(COLUMNS), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=ours, stderr=ours, env=environment) as process:
        os.close(ours)
        written = b""
        while block := _read(terminal):
            written += block
            sys.stdout.buffer.write(block)
            sys.stdout.flush()
    os.close(terminal)
    if process.returncode:
        sys.exit(process.returncode)
    return written.decode("utf-8")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux tells that the other side of a terminal was closed
        return b""


def spans(line: str) -> Iterator[tuple[int, str, str]]:
    """Column, style and text of each part of a line."""
    column, style, at = 0, "", 0
    for found in [*ESCAPE.finditer(line), None]:
        text = line[at : found.start() if found else None]
        if text.strip():
            blank = len(text) - len(text.lstrip())
            yield column + blank, style, text.strip()
        column += len(text)
        if found:
            style, at = found[1], found.end()


def draw(screen: str) -> str:
    """The SVG of a terminal's text."""
    lines = screen.replace("\r", "").rstrip("\n").split("\n")
    width, height = round(2 * PAD + COLUMNS * CELL), 2 * PAD + LINE * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, '
        f'\'DejaVu Sans Mono\', monospace" font-size="{SIZE}" fill="{TEXT}">',
        "<title>bitmtp-edge: plain decoding beside nested decoding</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
    ]
    for number, line in enumerate(lines):
        y = PAD + LINE * number + SIZE
        for column, style, text in spans(line):
            # Words keep their columns in any font: each part says how wide it is.
            size = len(text) * CELL
            look, text = STYLES.get(style, ""), escape(CONTROL.sub("?", text))
            parts.append(
                f'<text x="{PAD + column * CELL:g}" y="{y}" textLength="{size:g}" '
                f'lengthAdjust="spacingAndGlyphs" xml:space="preserve" {look}>{text}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} BUNDLE PICTURE.svg")
    bundle, picture = sys.argv[1:]
    screen = record([sys.executable, str(DEMO), bundle])
    Path(picture).write_text(draw(screen), encoding="utf-8")


if __name__ == "__main__":
    main()
