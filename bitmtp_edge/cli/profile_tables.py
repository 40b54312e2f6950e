"""What ``profile`` prints for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ..wording import counted, printable
from . import show
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
    show(
        f"{report.model}, engine {request.engine}{device}: "
        f"{counted(request.prompt_count, 'prompt')}, up to "
        f"{counted(request.max_new_tokens, 'token')}; means of rounds and half their 95 % intervals"
    )
    click.echo()
    rows = [(printable(point.key.name), *_cells(point)) for point in report.points]
    rows += [
        (printable(failure.key.name), *["-"] * len(HEADS)) for failure in report.without_figures
    ]
    table([("", *HEADS), *rows])
    _print_best(report.points)
    _print_power(report)
    for names, why in report.failures.items():
        show(f"{names}: no figures: {why}")
    none = [point.reason for point in report.points if point.joules_per_token is None]
    for reason in dict.fromkeys(filter(None, none)):
        show(f"no joules: {reason}")
    for point in report.points:
        if point.reason is not None and point.joules_per_token is not None:
            show(f"{point.key.name}: {point.reason}")
        if point.min_prefix is not None:
            show(f"{point.key.name}: min-prefix {point.min_prefix}")
        if point.busy is not None:
            show(f"{point.key.name}: {point.busy}")
    if loose := [point for point in report.points if not point.tight]:
        show(
            f"not within {request.within:.1%} after {request.max_rounds} rounds: "
            + ", ".join(point.key.name for point in loose)
        )
    if report.from_before:
        show(f"of the run before: {', '.join(key.name for key in report.from_before)}")
    for point in report.points:
        if held := point.conditions.throttled_by:
            show(f"{point.key.name}: throttled by {', '.join(held)}")
    if compared is not None:
        _print_changes(report, compared)


def _print_best(points: Sequence[ProfilePoint]) -> None:
    """Of several points, the fastest, and the one of the fewest joules a token."""
    if len(points) < 2:
        return
    told = [f"fastest: {max(points, key=lambda point: point.tokens_per_s.mean).key.name}"]
    joules = [(p.joules_per_token.mean, p.key.name) for p in points if p.joules_per_token]
    if len(joules) > 1:
        told.append(f"most frugal: {min(joules)[1]}")
    show("; ".join(told))


def _print_power(report: ProfileReport) -> None:
    """What joules and watts are of."""
    totals = dict.fromkeys(point.total_is for point in report.points if point.total_is)
    if report.request.energy is None or not totals:
        return
    idle = {
        point.key.power_mode: point.idle_watts
        for point in report.points
        if point.idle_watts is not None
    }
    told = ", ".join(f"{f'{mode} ' if mode else ''}{watts:.3g} W" for mode, watts in idle.items())
    show(
        f"power: {report.request.energy}, {', '.join(totals)}, idle power included"
        + (f" (the model loaded and at rest: {told})" if told else "")
    )


def _cells(point: ProfilePoint) -> tuple[str, ...]:
    heat = point.conditions.celsius
    return (
        _estimate(point.tokens_per_s, ".1f"),
        _estimate(point.joules_per_token, ".3g"),
        "-" if point.watts is None else f"{point.watts.mean:.3g}",
        "-" if heat is None else f"{heat:.0f}",
        f"{point.tokens_per_iteration:.2f}",
        _rounds(point),
    )


def _rounds(point: ProfilePoint) -> str:
    """How many; where joules are not of all, of how many these are."""
    rounds, joules = len(point.tokens_per_s.values), point.joules_per_token
    if joules is None or len(joules.values) == rounds:
        return str(rounds)
    return f"{rounds} (J: {len(joules.values)})"


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
    show(f"({CHANGED} {RULE})")
    for key in compared.unmatched:
        show(f"not in the older profile: {key.name}")
    for line in compared.elsewhere:
        show(f"different: {line}")
