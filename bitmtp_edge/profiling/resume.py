"""Whether a profile in a file may go on here: its points and the new ones stand in one table."""

from __future__ import annotations

from collections.abc import Callable

from ..environment import Environment
from ..power.metering import Metering
from .comparison import same_total
from .report import ProfileReport, Request


def other_machine(
    old: ProfileReport, request: Request, here: Environment, total: Callable[[], str | None]
) -> str | None:
    """What differs, of the machine that points of ``old`` were measured on and of what their joules
    are of; None where nothing does, or it has none. total: of the power source now."""
    if not old.points:
        return None
    for what, before, now in (
        ("processor", old.environment.processor, here.processor),
        ("device", old.request.device, request.device),
        ("power source", old.request.energy, request.energy),
    ):
        if before != now:
            return f"{what}: {before or 'none'} there, {now or 'none'} here"
    totals = [point.total_is for point in old.points if point.total_is is not None]
    present = total() if totals else None
    if present is not None:
        for total_is in totals:
            if not same_total(total_is, present):
                return f"power: of {total_is} there, of {present} here"
    return None


def total_now(metering: Metering) -> str | None:
    """What the total of the power source is now; None without one, or where it tells nothing."""
    window = metering.begin()
    return None if window is None else window.end(0).total_is
