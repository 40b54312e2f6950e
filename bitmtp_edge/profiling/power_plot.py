"""Power over time, a strip a point, with prefill and decoding shaded."""

from __future__ import annotations

from collections.abc import Sequence

from .pareto import legend_item
from .report import ProfilePoint, Trace
from .svg import Scale, clean, line, picture, text

WIDTH, HEIGHT = 760, 138
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 24, 26
STEPS = 4  # of watts
_LEAST = 1.0  # pixels of a stretch that is too short to be seen

# Prefill is hatched, so that no colour has to be told from another.
HATCH = (
    '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="2.2" height="5" class="hatch"/></pattern></defs>'
)


def strips(points: Sequence[ProfilePoint]) -> list[str]:
    """An SVG element for each point that has a trace; all with one scale of watts."""
    traced = [(point, point.trace) for point in points if point.trace is not None]
    if not traced:
        return []
    most = max(max(trace.watts) for _, trace in traced)
    y = Scale.up_to(most, HEIGHT - BOTTOM, TOP, STEPS)
    return [_strip(point, trace, y) for point, trace in traced]


def legend() -> str:
    """HTML: what is shaded how."""
    items = (
        ('<rect class="decode" x="1" y="2" width="16" height="14"/>', "decoding"),
        (
            '<rect class="prefill" x="1" y="2" width="16" height="14"/>',
            "prefill (at least a pixel)",
        ),
        (line(0, 9, 18, 9, "power"), "power"),
        (line(0, 9, 18, 9, "idle"), "idle, the model loaded"),
    )
    return f'<p class="legend">{"".join(legend_item(*item) for item in items)}</p>'


def _strip(point: ProfilePoint, trace: Trace, y: Scale) -> str:
    end = max(trace.seconds[-1], trace.stretches[-1].end)
    x = Scale(end or 1.0, LEFT, WIDTH - RIGHT)
    parts = []
    for stretch in sorted(trace.stretches, key=lambda each: each.phase):  # prefill on top
        left = x.at(stretch.begin)
        width = max(x.at(stretch.end) - left, _LEAST)
        parts.append(
            f'<rect class="{clean(stretch.phase)}" x="{left:.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"/>'
        )
    for at, label in y.ticks(STEPS):
        parts.append(line(LEFT, at, WIDTH - RIGHT, at, "grid"))
        parts.append(text(LEFT - 8, at + 4, label, 'class="soft end"'))
    for at, label in x.ticks(8):
        if at <= WIDTH - RIGHT:
            parts.append(text(at, HEIGHT - BOTTOM + 17, label, 'class="soft middle"'))
    if point.idle_watts is not None:
        at = y.at(point.idle_watts)
        parts.append(line(LEFT, at, WIDTH - RIGHT, at, "idle"))
    samples = zip(trace.seconds, trace.watts, strict=True)
    way = " ".join(f"{x.at(second):.1f},{y.at(watts):.1f}" for second, watts in samples)
    parts.append(f'<polyline class="power" points="{way}"/>')
    parts.append(text(LEFT, TOP - 9, point.key.name, 'class="label"'))
    parts.append(text(WIDTH - RIGHT, TOP - 9, "W over seconds", 'class="soft end"'))
    return picture(WIDTH, HEIGHT, f"Power over time: {point.key.name}", parts)
