"""What ``profile`` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..wording import counted, printable
from .bench_tables import table

if TYPE_CHECKING:
    from ..profiling.comparison import Comparison
    from ..profiling.report import ProfilePoint, ProfileReport
    from ..profiling.statistics import Estimate

HEADS = ("tok/s", "J/token", "W", "deg C", "tokens/iter.", "rounds")
CHANGED = "*"


def print_profile(report: ProfileReport, compared: Comparison | None) -> None:
    request = report.request
    device = "" if request.device is None else f" on {request.device}"
    _print(
        f"{report.model}, engine {request.engine}{device}: "
        f"{counted(request.prompt_count, 'prompt')}, up to "
        f"{counted(request.max_new_tokens, 'token')}; means of rounds and half their 95 % intervals"
    )
    click.echo()
    table([("", *HEADS), *((printable(point.key.name), *_cells(point)) for point in report.points)])
    for reason in dict.fromkeys(point.reason for point in report.points if point.reason):
        _print(f"no joules: {reason}")
    if loose := [point for point in report.points if not point.tight]:
        _print(
            f"not within {request.within:.1%} after {request.max_rounds} rounds: "
            + ", ".join(point.key.name for point in loose)
        )
    if report.from_before:
        _print(f"of the run before: {', '.join(key.name for key in report.from_before)}")
    for point in report.points:
        if held := point.conditions.throttled_by:
            _print(f"{point.key.name}: throttled by {', '.join(held)}")
    if compared is not None:
        _print_changes(report, compared)


def _print(line: str) -> None:
    """What a bundle or a board names may steer a terminal."""
    click.echo(printable(line))


def _cells(point: ProfilePoint) -> tuple[str, ...]:
    heat = point.conditions.celsius
    return (
        _estimate(point.tokens_per_s, ".1f"),
        _estimate(point.joules_per_token, ".3g"),
        "-" if point.watts is None else f"{point.watts.mean:.3g}",
        "-" if heat is None else f"{heat:.0f}",
        f"{point.tokens_per_iteration:.2f}",
        str(len(point.tokens_per_s.values)),
    )


def _estimate(found: Estimate | None, form: str) -> str:
    if found is None:
        return "-"
    sure = "" if found.margin is None else f" +-{found.margin:.1%}"
    return f"{found.mean:{form}}{sure}"


def _print_changes(report: ProfileReport, compared: Comparison) -> None:
    from ..profiling.comparison import RULE

    click.echo()
    rows: list[tuple[str, ...]] = [("since the older profile", "tok/s", "J/token", "W")]
    for index, changes in compared.changes.items():
        by_name = {change.figure: change for change in changes}
        cells = []
        for figure in rows[0][1:]:
            change = by_name.get(figure)
            mark = CHANGED if change is not None and change.changed else ""
            cells.append("-" if change is None else f"{change.ratio - 1:+.1%}{mark}")
        rows.append((printable(report.points[index].key.name), *cells))
    table(rows)
    _print(f"({CHANGED} {RULE})")
    for key in compared.unmatched:
        _print(f"not in the older profile: {key.name}")
    for line in compared.elsewhere:
        _print(f"different: {line}")
