"""Power over time, gathered from the meter's windows."""

from __future__ import annotations

from ..power.meter import Window
from ..power.report import Stretch
from ..power.source import Reading
from .report import Trace

MOST = 480  # points of a trace: more than a page shows


class TraceRecorder:
    """Windows that lie one behind the other on the meter's clock."""

    def __init__(self) -> None:
        self._readings: dict[float, Reading] = {}  # neighbours share those between them
        self._stretches: list[Stretch] = []

    def add(self, window: Window) -> None:
        """A window that has ended."""
        self._readings.update((reading.at, reading) for reading in window.readings)
        self._stretches.extend(each for each in window.stretches if each.end > each.begin)

    def trace(self) -> Trace | None:
        """From the first reading on; None without one. Where there are many, neighbours are
        averaged."""
        if not self._readings or not self._stretches:
            return None
        began = min(min(self._readings), self._stretches[0].begin)
        ordered = [self._readings[at] for at in sorted(self._readings)]
        size = -(-len(ordered) // MOST)
        groups = [ordered[i : i + size] for i in range(0, len(ordered), size)]
        return Trace(
            tuple(round(_mean([r.at for r in group]) - began, 3) for group in groups),
            tuple(round(_mean([r.total_mw for r in group]) / 1000, 3) for group in groups),
            tuple(
                Stretch(each.phase, round(each.begin - began, 4), round(each.end - began, 4))
                for each in self._stretches
            ),
        )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
