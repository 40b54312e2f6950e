"""The plot of tokens a second against joules a token; of tokens a second alone without a meter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .report import ProfilePoint
from .statistics import Estimate
from .svg import Scale, clean, line, mark, picture, text

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 20, 52
_LETTER = 7.4  # pixels of a letter of a label
_MOST_LABELS = 8
_WIDEST = 1.25  # of a mean: whiskers beyond are cut
_Box = tuple[float, float, float, float]


class Looks:
    """Which shape and colour a point has: the shape is the policy's, the colour the power mode's,
    or the policy's too where there is one mode."""

    def __init__(self, points: Sequence[ProfilePoint]) -> None:
        self.policies = list(dict.fromkeys(point.key.label for point in points))
        self.modes = list(dict.fromkeys(point.key.power_mode for point in points))

    def of(self, point: ProfilePoint) -> tuple[int, int]:
        """Numbers of the shape and of the colour."""
        shape = self.policies.index(point.key.label)
        several = len(self.modes) > 1
        return shape, self.modes.index(point.key.power_mode) if several else shape

    def legend(self) -> str:
        """HTML: shapes, and of several modes colours."""
        several = len(self.modes) > 1
        items = [
            legend_item(mark(index, None if several else index, 9, 9), label)
            for index, label in enumerate(self.policies)
        ]
        if several:
            items += [
                legend_item(mark(0, index, 9, 9), mode or "-")
                for index, mode in enumerate(self.modes)
            ]
        return f'<p class="legend">{"".join(items)}</p>'


def legend_item(drawn: str, label: str) -> str:
    """HTML: a drawing of 18 by 18 pixels, and what it stands for."""
    svg = f'<svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true">{drawn}</svg>'
    return f"<span>{svg} {clean(label)}</span> "


def plot(points: Sequence[ProfilePoint], looks: Looks) -> str:
    """An SVG element, of at least one point."""
    measured = [point for point in points if point.joules_per_token is not None]
    return _pareto(measured, looks) if measured else _rates(points, looks)


def front(points: Sequence[ProfilePoint]) -> list[ProfilePoint]:
    """Those that no other beats in both figures, by tokens a second."""
    best: list[ProfilePoint] = []
    for point in sorted(points, key=lambda each: (-each.tokens_per_s.mean, _joules(each).mean)):
        if not best or _joules(point).mean < _joules(best[-1]).mean:
            best.append(point)
    return best[::-1]


def _pareto(points: Sequence[ProfilePoint], looks: Looks) -> str:
    x = Scale.up_to(_highest(point.tokens_per_s for point in points), LEFT, WIDTH - RIGHT)
    y = Scale.up_to(_highest(_joules(point) for point in points), HEIGHT - BOTTOM, TOP)
    parts = [*_axes(x, y)]
    best = front(points)
    way = " ".join(
        f"{x.at(point.tokens_per_s.mean):.1f},{y.at(_joules(point).mean):.1f}" for point in best
    )
    parts.append(f'<polyline class="front" points="{way}"/>')
    taken: list[_Box] = []
    for point in points:
        here = x.at(point.tokens_per_s.mean), y.at(_joules(point).mean)
        taken.append((here[0] - 8, here[1] - 8, here[0] + 8, here[1] + 8))
    named = points if len(points) <= _MOST_LABELS else best
    for point in points:
        rate, energy = point.tokens_per_s, _joules(point)
        across, down = x.at(rate.mean), y.at(energy.mean)
        shape, colour = looks.of(point)
        parts.append(f"<g><title>{clean(_told(point))}</title>")
        if rate.low is not None and rate.high is not None:
            parts.append(line(x.at(rate.low), down, x.at(rate.high), down, "whisker"))
        if energy.low is not None and energy.high is not None:
            parts.append(line(across, y.at(energy.low), across, y.at(energy.high), "whisker"))
        parts.append(mark(shape, colour, across, down))
        if point in named:
            parts.append(_label(point.key.name, across, down, taken))
        parts.append("</g>")
    parts.append(
        text(WIDTH - RIGHT - 8, HEIGHT - BOTTOM - 10, "better: right and down", 'class="soft end"')
    )
    return picture(WIDTH, HEIGHT, "Joules a token against tokens a second", parts)


def _axes(x: Scale, y: Scale) -> list[str]:
    parts = []
    for at, label in x.ticks():
        parts.append(line(at, TOP, at, HEIGHT - BOTTOM, "grid"))
        parts.append(text(at, HEIGHT - BOTTOM + 18, label, 'class="soft middle"'))
    for at, label in y.ticks():
        parts.append(line(LEFT, at, WIDTH - RIGHT, at, "grid"))
        parts.append(text(LEFT - 8, at + 4, label, 'class="soft end"'))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "tokens/s", 'class="middle"'))
    turned = f'class="middle" transform="translate(16 {middle:g}) rotate(-90)"'
    parts.append(text(0, 0, "J/token", turned))
    return parts


def _rates(points: Sequence[ProfilePoint], looks: Looks) -> str:
    """A row a point."""
    left, row = 40 + _LETTER * max(len(point.key.name) for point in points), 34
    height = TOP + row * len(points) + BOTTOM
    x = Scale.up_to(_highest(each.tokens_per_s for each in points), left, WIDTH - RIGHT - 60)
    parts = []
    for at, label in x.ticks():
        parts.append(line(at, TOP, at, height - BOTTOM, "grid"))
        parts.append(text(at, height - BOTTOM + 18, label, 'class="soft middle"'))
    for index, point in enumerate(points):
        rate, down = point.tokens_per_s, TOP + row * (index + 0.5)
        shape, colour = looks.of(point)
        parts.append(f"<g><title>{clean(_told(point))}</title>")
        parts.append(text(left - 12, down + 4, point.key.name, 'class="end"'))
        parts.append(line(left, down, x.at(rate.mean), down, "stem"))
        if rate.low is not None and rate.high is not None:
            parts.append(line(x.at(rate.low), down, x.at(rate.high), down, "whisker"))
        parts.append(mark(shape, colour, x.at(rate.mean), down))
        parts.append(text(x.at(rate.mean) + 12, down + 4, f"{rate.mean:.1f}", 'class="soft"'))
        parts.append("</g>")
    parts.append(text((left + WIDTH) / 2, height - 10, "tokens/s", 'class="middle"'))
    return picture(WIDTH, height, "Tokens a second", parts)


def _highest(estimates: Iterable[Estimate]) -> float:
    """Room for whiskers, but not for those of a mean that nobody knows."""
    return max(min(each.high or each.mean, _WIDEST * each.mean) for each in estimates)


def _joules(point: ProfilePoint) -> Estimate:
    assert point.joules_per_token is not None, "only points with joules are drawn here"
    return point.joules_per_token


def _label(name: str, x: float, y: float, taken: list[_Box]) -> str:
    """The name beside its mark, where nothing stands yet."""
    width = _LETTER * len(name)
    places = (
        (x + 13, y + 4),
        (x - 13 - width, y + 4),
        (x - width / 2, y - 12),
        (x - width / 2, y + 21),
        (x + 11, y - 10),
        (x + 11, y + 18),
    )
    for left, base in places:
        box = (left, base - 11, left + width, base + 3)
        inside = box[0] > LEFT and box[2] < WIDTH - 2 and box[1] > 2 and box[3] < HEIGHT - BOTTOM
        if inside and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            if left + width < x:  # fonts differ: its end is to stand beside the mark
                return text(left + width, base, name, 'class="label end"')
            return text(left, base, name, 'class="label"')
    return ""  # the legend and the title tell


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _told(point: ProfilePoint) -> str:
    told = f"{point.key.name}: {point.tokens_per_s.mean:.1f} tokens/s"
    if point.joules_per_token is None:
        return told
    return f"{told}, {point.joules_per_token.mean:.3g} J/token"
