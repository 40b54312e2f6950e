"""What a profile's file may hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.profiling.report import Failure, ProfilePoint, Trace
from bitmtp_edge.profiling.soundness import check_sound
from bitmtp_edge.profiling.statistics import Estimate

from .samples import TRACE, point, report, without_joules


@pytest.mark.parametrize(
    "one", [point(), without_joules(point(), "off"), point(rates=(99.0,)), point(mode=None)]
)
def test_what_profiles_write(one: ProfilePoint) -> None:
    check_sound(report(one), "x")


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (replace(point(), idle_watts=float("inf")), "x.points[0].idle_watts: inf is no figure"),
        (replace(point(), seconds=1e308), "x.points[0].seconds: 1e+308 is no figure"),
        (replace(point(), generated_tokens=10**300), "generated_tokens: 1e+300 is no figure"),
        (replace(point(), tokens_per_s=Estimate(1.0, None, None, ())), "not the mean of its"),
        (replace(point(), watts=Estimate(9.0, 8.0, 10.0, (1.0, 2.0))), "not the mean of its"),
        (replace(point(), watts=Estimate(1.5, 8.0, 10.0, (1.0, 2.0))), "not the mean of its"),
        (replace(point(), watts=Estimate(1.5, 1.0, None, (1.0, 2.0))), "not the mean of its"),
        (replace(point(), trace=Trace((), (), TRACE.stretches)), "not power over time"),
        (replace(point(), trace=Trace((1.0, 0.5), (1.0, 1.0), TRACE.stretches)), "not power"),
        (replace(point(), trace=Trace((0.0, 0.5), (1.0, 1.0), ())), "not power over time"),
        (replace(point(), tokens_per_iteration=0.0), "has no tokens"),
    ],
)
def test_what_no_profile_writes(one: ProfilePoint, told: str) -> None:
    with pytest.raises(UserError, match=r"^x\.points\[0\]") as caught:
        check_sound(report(one), "x")
    assert told in str(caught.value)


def test_keys() -> None:
    with pytest.raises(UserError, match="15W ar is there twice"):
        check_sound(report(point(), point()), "x")
    with pytest.raises(UserError, match="25W ar was not asked for"):
        check_sound(report(point("25W"), points=(point().key,)), "x")
    failed = Failure(point("25W").key, "2026-11-30T11:00:00+00:00", "it broke")
    with pytest.raises(UserError, match="25W ar was not asked for"):
        check_sound(replace(report(point()), failed=(failed,)), "x")
    stale = replace(report(point()), from_before=(point("25W").key,))
    with pytest.raises(UserError, match="from_before"):
        check_sound(stale, "x")
