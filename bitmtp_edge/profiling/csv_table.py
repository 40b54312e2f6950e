"""The points of a profile as comma-separated values: a row each, under fixed names."""

from __future__ import annotations

import csv
import io

from .report import PointKey, ProfilePoint, ProfileReport
from .statistics import Estimate

COLUMNS = (
    "power_mode",
    "policy",
    "gamma",
    "block",
    "tau",
    "min_prefix",
    "objective",
    "tokens_per_s",
    "tokens_per_s_low",
    "tokens_per_s_high",
    "joules_per_token",
    "joules_per_token_low",
    "joules_per_token_high",
    "watts",
    "idle_watts",
    "celsius",
    "gpu_mhz",
    "memory_mhz",
    "throttled_by",
    "tokens_per_iteration",
    "verified_share",
    "rounds",
    "joules_rounds",
    "tight",
    "reason",
)

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SETTINGS = ("gamma", "block", "tau", "min_prefix", "objective")


def to_csv(report: ProfileReport) -> str:
    """The text, lines ended as RFC 4180 has it; what is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    failures = [{**_key(each.key), "reason": each.reason} for each in report.without_figures]
    for row in (*map(_row, report.points), *failures):
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return text.getvalue()


def _key(key: PointKey) -> dict[str, object]:
    return {
        "power_mode": key.power_mode,
        "policy": key.policy,
        **{name: key.settings.get(name) for name in _SETTINGS},
    }


def _row(point: ProfilePoint) -> dict[str, object]:
    conditions, joules = point.conditions, point.joules_per_token
    return {
        **_key(point.key),
        **_interval("tokens_per_s", point.tokens_per_s),
        **_interval("joules_per_token", joules),
        "watts": None if point.watts is None else point.watts.mean,
        "idle_watts": point.idle_watts,
        "celsius": conditions.celsius,
        "gpu_mhz": None if conditions.gpu_mhz is None else conditions.gpu_mhz.mean,
        "memory_mhz": None if conditions.memory_mhz is None else conditions.memory_mhz.mean,
        "throttled_by": "; ".join(conditions.throttled_by),
        "tokens_per_iteration": point.tokens_per_iteration,
        "verified_share": point.verified_share,
        "rounds": len(point.tokens_per_s.values),
        "joules_rounds": 0 if joules is None else len(joules.values),
        "tight": "yes" if point.tight else "no",
        "reason": point.reason,
    }


def _cell(value: object) -> object:
    """A name that a spreadsheet would take for a formula gets a quote mark before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _interval(name: str, found: Estimate | None) -> dict[str, float | None]:
    if found is None:
        return {}
    return {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}
