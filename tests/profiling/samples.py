"""Reports that nobody measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bitmtp_edge.environment import Environment
from bitmtp_edge.power.clocks import Seen
from bitmtp_edge.power.report import Stretch
from bitmtp_edge.profiling.report import (
    Conditions,
    PointKey,
    ProfilePoint,
    ProfileReport,
    Request,
    Trace,
)
from bitmtp_edge.profiling.statistics import estimate

HYBRID = {"block": 8, "tau": 0.9, "min_prefix": 2}
TRACE = Trace(
    (0.0, 0.5, 1.0, 1.5),
    (5.0, 9.0, 9.5, 5.0),
    (Stretch("prefill", 0.2, 0.4), Stretch("decode", 0.4, 1.4)),
)


def point(
    mode: str | None = "15W",
    policy: str = "ar",
    rates: Sequence[float] = (99.0, 100.0, 101.0),
    watts: float = 10.0,
    **settings: float | str | None,
) -> ProfilePoint:
    """With ``watts`` at each of ``rates``, a round each."""
    return ProfilePoint(
        key=PointKey(mode, policy, dict(settings)),
        date="2026-11-30T11:00:00+00:00",
        tight=True,
        tokens_per_s=estimate(rates),
        joules_per_token=estimate([watts / rate for rate in rates]),
        watts=estimate([watts] * len(rates)),
        reason=None,
        total_is="VDD_IN",
        counter_over_integrated=None,
        decode_share=0.99,
        idle_watts=4.0,
        tokens_per_iteration=1.0,
        verified_share=1.0,
        generated_tokens=300,
        seconds=12.0,
        conditions=Conditions(61.5, "gpu-thermal", Seen(612, 700, 918), None, False, ()),
        trace=TRACE,
    )


def without_joules(one: ProfilePoint, reason: str) -> ProfilePoint:
    return replace(one, joules_per_token=None, watts=None, reason=reason, trace=None)


def report(*points: ProfilePoint, **request: object) -> ProfileReport:
    """Of these points, all that were asked for."""
    asked = Request(
        bundle="ab" * 32,
        sdk="1.0",
        engine="cpu",
        threads=2,
        device=None,
        prompts="cd" * 32,
        prompt_count=2,
        max_new_tokens=128,
        within=0.02,
        max_rounds=10,
        min_seconds=2.0,
        energy="ina3221",
        points=tuple(each.key for each in points),
    )
    return ProfileReport(
        complete=True,
        command="bitmtp-edge profile bundle --prompts prompts.txt",
        bundle="bundle",
        model="tiny",
        prompt_file="prompts.txt",
        energy_reason=None,
        request=replace(asked, **request),  # type: ignore[arg-type]
        environment=Environment(
            date="2026-11-30T11:05:00+00:00",
            system="Linux 5.15 aarch64",
            processor=None,
            processors=6,
            engine="cpu",
            threads=2,
            instructions="dotprod",
            device=None,
            versions={"bitmtp-edge": "1.0", "python": "3.10.12", "numpy": "1.26.4"},
        ),
        points=points,
    )
