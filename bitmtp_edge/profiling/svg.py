"""Small parts of SVG drawings: escaped text, axes, marks. Colours are the page's CSS variables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = 6  # --c0 to --c5
_CONTROL = re.compile(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not of XML

# Outlines of radius 1 around the origin, told apart without colour.
_SHAPES = (
    "",  # a circle, which is no polygon
    "-.88,-.88 .88,-.88 .88,.88 -.88,.88",
    "0,-1.15 1.05,.8 -1.05,.8",
    "0,-1.25 1.25,0 0,1.25 -1.25,0",
    "0,1.15 1.05,-.8 -1.05,-.8",
    "-.4,-1.1 .4,-1.1 .4,-.4 1.1,-.4 1.1,.4 .4,.4 .4,1.1 -.4,1.1 -.4,.4 -1.1,.4 -1.1,-.4 -.4,-.4",
    "0,-1.3 .38,-.42 1.24,-.4 .6,.18 .8,1.05 0,.55 -.8,1.05 -.6,.18 -1.24,-.4 -.38,-.42",
    "-1.1,0 -.55,-1 .55,-1 1.1,0 .55,1 -.55,1",
)


def clean(value: object) -> str:
    """Text that may stand in an element or an attribute."""
    return escape(_CONTROL.sub("?", str(value)))


def text(x: float, y: float, content: object, more: str = "") -> str:
    """more: attributes."""
    return f'<text x="{x:.1f}" y="{y:.1f}"{" " * bool(more)}{more}>{clean(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """kind: a class of the page's style."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def picture(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """An SVG element as wide as the page allows."""
    head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{clean(title)}">'
    return "\n".join((head, *parts, "</svg>"))


def mark(shape: int, colour: int | None, x: float, y: float, size: float = 6.0) -> str:
    """A filled mark of one of the shapes, in one of the colours, or in none; both go round."""
    fill = "--soft" if colour is None else f"--c{colour % COLOURS}"
    look = f'style="fill:var({fill})" class="mark"'
    points = _SHAPES[shape % len(_SHAPES)]
    if not points:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" {look}/>'
    placed = []
    for pair in points.split():
        dx, dy = map(float, pair.split(","))
        placed.append(f"{x + size * dx:.1f},{y + size * dy:.1f}")
    return f'<polygon points="{" ".join(placed)}" {look}/>'


@dataclass(frozen=True)
class Scale:
    """Values from 0 to ``most`` on the way from pixel ``first`` to pixel ``last``."""

    most: float
    first: float
    last: float

    @classmethod
    def up_to(cls, highest: float, first: float, last: float, steps: int = 5) -> Scale:
        """Room for ``highest``, up to the end of a round step."""
        step = _step(highest, steps)
        return cls(step * math.ceil(highest / step * 1.02), first, last)

    def at(self, value: float) -> float:
        """The pixel of a value; beyond the scale, of its end."""
        value = min(max(value, 0.0), self.most)
        return self.first + (self.last - self.first) * value / self.most

    def ticks(self, steps: int = 5) -> Iterator[tuple[float, str]]:
        """Pixel and label of round values."""
        step = _step(self.most, steps)
        for index in range(math.floor(self.most / step * 1.0001) + 1):
            yield self.at(index * step), f"{index * step:.6g}"


def _step(highest: float, steps: int) -> float:
    """A round number, of which about ``steps`` reach ``highest``."""
    raw = (highest or 1.0) / steps
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * each for each in (1.0, 2.0, 2.5, 5.0, 10.0) if power * each >= raw * 0.999)
