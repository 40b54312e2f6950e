"""A profile beside an older one: which figures changed beyond noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import UserError
from .report import PointKey, ProfilePoint, ProfileReport, Request
from .statistics import FLOOR, Estimate

RULE = (
    "changed: the 95 % intervals of both means do not touch, and the means are more than "
    f"{FLOOR:.0%} apart"
)

_Figure = tuple[str, Callable[[ProfilePoint], Estimate | None]]
_RATE: tuple[_Figure, ...] = (("tok/s", lambda point: point.tokens_per_s),)
_ENERGY: tuple[_Figure, ...] = (
    ("J/token", lambda point: point.joules_per_token),
    ("W", lambda point: point.watts),
)
_SUM = "sum of "


@dataclass(frozen=True)
class Change:
    """ratio: new over old mean. changed: beyond noise."""

    figure: str
    old: float
    new: float
    ratio: float
    changed: bool


@dataclass(frozen=True)
class Comparison:
    """changes: of the points that both have, by their place among the new ones; ``unmatched`` of
    the new ones the old profile has not. elsewhere: what else differs between the two."""

    changes: dict[int, list[Change]]
    unmatched: list[PointKey]
    elsewhere: list[str]


def check_comparable(old: ProfileReport, new: Request) -> None:
    """UserError where ``old`` decoded other prompts, or replies of another length: its tokens cost
    something else."""
    if old.request.prompts != new.prompts:
        raise UserError("--compare: that profile decoded other prompts: give the same --prompts")
    if old.request.max_new_tokens != new.max_new_tokens:
        raise UserError(
            f"--compare: that profile's replies had up to {old.request.max_new_tokens} tokens: "
            f"give --max-new-tokens {old.request.max_new_tokens}"
        )


def compare(new: ProfileReport, old: ProfileReport) -> Comparison:
    """Point by point, by the rule :data:`RULE`. Watts and joules of another total are not compared:
    what feeds the board draws more than a few rails of it."""
    changes: dict[int, list[Change]] = {}
    unmatched, totals = [], []
    for index, point in enumerate(new.points):
        before = old.point(point.key)
        if before is None:
            unmatched.append(point.key)
        else:
            alike = same_total(point.total_is, before.total_is)
            changes[index] = _changes(point, before, (*_RATE, *_ENERGY) if alike else _RATE)
            if not alike and None not in (point.total_is, before.total_is):
                totals.append(
                    f"power: of {before.total_is} before, of {point.total_is} now: W and J/token "
                    "are not compared"
                )
    elsewhere = [*_elsewhere(new, old), *dict.fromkeys(totals)]
    return Comparison(changes, unmatched, elsewhere)


def same_total(one: str | None, other: str | None) -> bool:
    """Whether both totals are of the same rails, in whatever order a sum names them."""
    if one is None or other is None or not (one.startswith(_SUM) and other.startswith(_SUM)):
        return one == other
    return sorted(one[len(_SUM) :].split(", ")) == sorted(other[len(_SUM) :].split(", "))


def _changes(point: ProfilePoint, before: ProfilePoint, figures: Sequence[_Figure]) -> list[Change]:
    found = []
    for name, of in figures:
        now, then = of(point), of(before)
        if now is None or then is None or not then.mean:
            continue
        found.append(
            Change(name, then.mean, now.mean, now.mean / then.mean, now.differs_from(then))
        )
    return found


def _elsewhere(new: ProfileReport, old: ProfileReport) -> list[str]:
    told = [
        f"{name}: {getattr(old.request, name)} before, {getattr(new.request, name)} now"
        for name in ("bundle", "sdk", "engine", "threads", "device", "energy")
        if getattr(new.request, name) != getattr(old.request, name)
    ]
    here, there = new.environment, old.environment
    told += [
        f"{name}: {getattr(there, name)} before, {getattr(here, name)} now"
        for name in ("system", "processor", "instructions")
        if getattr(here, name) != getattr(there, name)
    ]
    for name in sorted({*here.versions, *there.versions} - {"bitmtp-edge"}):
        now, then = here.versions.get(name), there.versions.get(name)
        if now != then:
            told.append(f"{name}: {then} before, {now} now")
    return told
