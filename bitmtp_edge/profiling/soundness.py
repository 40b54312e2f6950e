"""Whether a profile's JSON can be what a profile wrote: its types are right, are its values?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from ..errors import UserError
from .statistics import Estimate

if TYPE_CHECKING:
    from .report import ProfilePoint, ProfileReport, Trace

_LARGEST = 1e15  # of anything that is counted or measured here


def check_sound(report: ProfileReport, where: str) -> None:
    """UserError that names the first value which no measurement gives."""
    for path, number in _numbers(report, where):
        if not (math.isfinite(number) and abs(number) <= _LARGEST):
            raise UserError(f"{path}: {float(number):g} is no figure")
    keys = [point.key for point in report.points]
    for index, point in enumerate(report.points):
        at = f"{where}.points[{index}]"
        if point.key not in report.request.points:
            raise UserError(f"{at}: {point.key.name} was not asked for")
        if point.key in keys[:index]:
            raise UserError(f"{at}: {point.key.name} is there twice")
        _check_point(point, at)
    for index, failure in enumerate(report.failed):
        if failure.key not in report.request.points:
            raise UserError(f"{where}.failed[{index}]: {failure.key.name} was not asked for")
    if any(key not in keys for key in report.from_before):
        raise UserError(f"{where}.from_before: names a point that is not there")


def _check_point(point: ProfilePoint, at: str) -> None:
    for name in ("tokens_per_s", "joules_per_token", "watts"):
        found: Estimate | None = getattr(point, name)
        if found is not None and not _is_estimate(found):
            raise UserError(f"{at}.{name}: is not the mean of its values")
    if point.tokens_per_iteration <= 0 or point.generated_tokens <= 0:
        raise UserError(f"{at}: has no tokens")
    if point.trace is not None and not _is_trace(point.trace):
        raise UserError(f"{at}.trace: is not power over time")


def _is_estimate(found: Estimate) -> bool:
    """Of values above zero: what decodes takes time, and power."""
    if not found.values or min(found.values) <= 0:
        return False
    if not min(found.values) * 0.999 <= found.mean <= max(found.values) * 1.001:
        return False
    if found.low is None or found.high is None:
        return found.low is found.high
    return found.low <= found.mean <= found.high


def _is_trace(trace: Trace) -> bool:
    return (
        len(trace.seconds) == len(trace.watts) > 0
        and list(trace.seconds) == sorted(trace.seconds)
        and min(trace.watts) >= 0
        and bool(trace.stretches)
        and all(0 <= each.begin <= each.end for each in trace.stretches)
    )


def _numbers(value: object, where: str) -> Iterator[tuple[str, int | float]]:
    """Every number in a record, and where it is."""
    if isinstance(value, int | float):
        yield where, value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _numbers(getattr(value, field.name), f"{where}.{field.name}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{where}.{key}")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{where}[{index}]")
