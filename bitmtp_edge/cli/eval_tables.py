"""The tables of ``eval``: a row a policy, columns by task, in bands that fit a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..evaluation_report import Average, EvalReport, PolicyFigures, TaskFigures

COLUMNS = 100
NONE = "-"
_GAP, _WIDE_GAP = "  ", "   "


@dataclass(frozen=True)
class Group:
    """Columns under one title; every row has a cell for each of ``heads``."""

    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def lines(self) -> list[str]:
        """The title, the heads and the rows, all of one width."""
        cells = [self.heads, *self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        texts = [
            _GAP.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in cells
        ]
        width = max(len(self.title), len(texts[0]))
        return [self.title.center(width), *(text.rjust(width) for text in texts)]


def bands(labels: Sequence[str], groups: Sequence[Group], columns: int = COLUMNS) -> Iterator[str]:
    """Lines of a table with ``labels`` before its rows; groups that no longer fit begin another."""
    firsts = ["", "policy", *labels]
    width = max(map(len, firsts))
    head = [first.ljust(width) for first in firsts]
    band = head
    for group in groups:
        lines = group.lines()
        if band is not head and len(band[0]) + len(_WIDE_GAP) + len(lines[0]) > columns:
            yield from _closed(band)
            band = head
        band = [a + _WIDE_GAP + b for a, b in zip(band, lines, strict=True)]
    yield from _closed(band)


def _closed(band: Sequence[str]) -> Iterator[str]:
    yield from (line.rstrip() for line in band)
    yield ""


def label(figures: PolicyFigures) -> str:
    """``hybrid D=8 m=2``; tau is told once, above the tables."""
    names = {"block": "D", "min_prefix": "m", "gamma": "gamma"}
    settings = [f"{names[k]}={v}" for k, v in figures.settings.items() if k in names]
    return " ".join(["baseline"] * figures.baseline + [figures.policy, *settings])


def tables(report: EvalReport) -> Iterator[str]:
    """All tables, line by line."""
    labels = [label(figures) for figures in report.policies]
    over_baseline = report.baseline is not None

    def quality(each: TaskFigures | Average) -> tuple[str, ...]:
        speedup = each.speedup_over_baseline if over_baseline else each.speedup_over_ar
        told = "" if speedup is None else f" ({speedup:.2f}x)"
        return _number(each.score, 1), f"{each.tokens_per_s:.1f}{told}"

    def progress(each: TaskFigures | Average) -> tuple[str, ...]:
        verified = NONE if each.mean_accepted is None else f"{each.verified_share:.0%}"
        return f"{each.tokens_per_iteration:.2f}", verified

    yield from bands(labels, _by_task(report, ("Sc.", "Rate"), quality))
    yield from bands(labels, _by_task(report, ("tok/it", "ver."), progress))
    yield from bands(labels, [*_averages(report), _all_tasks(report)])


def _by_task(
    report: EvalReport,
    heads: tuple[str, ...],
    cells: Callable[[TaskFigures | Average], tuple[str, ...]],
) -> list[Group]:
    done = [task for task in report.tasks if task.done]
    groups = [
        Group(
            f"{task.task}{' (apart)' * task.apart}",
            heads,
            [cells(figures.tasks[index]) for figures in report.policies],
        )
        for index, task in enumerate(done)
    ]
    averages = [figures.average for figures in report.policies]
    rows = [cells(average) for average in averages if average is not None]
    return [*groups, Group("Average", heads, rows)] if rows else groups


def _averages(report: EvalReport) -> list[Group]:
    """What the average has beside the columns of the other tables."""
    averages = [each.average for each in report.policies if each.average is not None]
    heads = ("h", "accepted", "over own ar", "tok/it distinct", "4-grams")
    rows = [
        (
            _number(each.mean_confident, 2),
            _number(each.mean_accepted, 2),
            NONE if each.speedup_over_ar is None else f"{each.speedup_over_ar:.2f}x",
            _number(each.tokens_per_iteration_distinct, 2),
            f"{each.distinct_4grams:.2f}",
        )
        for each in averages
    ]
    return [Group("Average", heads, rows)] if rows else []


def _all_tasks(report: EvalReport) -> Group:
    heads = ("as ar", "repetitive", "cut", "replies")
    rows = []
    for each in report.policies:
        replies = len(each.replies)
        same = NONE if each.baseline else str(replies - each.different)
        repetitive = sum(len(task.repetitive) for task in each.tasks)
        cut = sum(task.cut for task in each.tasks)
        rows.append((same, str(repetitive), str(cut), str(replies)))
    return Group("All tasks, replies", heads, rows)


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"
