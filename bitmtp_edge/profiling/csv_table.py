"""The points of a profile as comma-separated values: a row each, under fixed names."""

from __future__ import annotations

import csv
import io

from .report import ProfilePoint, ProfileReport
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
    for point in report.points:
        writer.writerow({name: _cell(value) for name, value in _row(point).items()})
    return text.getvalue()


def _row(point: ProfilePoint) -> dict[str, object]:
    settings, conditions = point.key.settings, point.conditions
    return {
        "power_mode": point.key.power_mode,
        "policy": point.key.policy,
        **{name: settings.get(name) for name in _SETTINGS},
        **_interval("tokens_per_s", point.tokens_per_s),
        **_interval("joules_per_token", point.joules_per_token),
        "watts": None if point.watts is None else point.watts.mean,
        "idle_watts": point.idle_watts,
        "celsius": conditions.celsius,
        "gpu_mhz": None if conditions.gpu_mhz is None else conditions.gpu_mhz.mean,
        "memory_mhz": None if conditions.memory_mhz is None else conditions.memory_mhz.mean,
        "throttled_by": "; ".join(conditions.throttled_by),
        "tokens_per_iteration": point.tokens_per_iteration,
        "verified_share": point.verified_share,
        "rounds": len(point.tokens_per_s.values),
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
