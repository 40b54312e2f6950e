"""The whole profile: every policy in every power mode, kept after each point."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from time import perf_counter

from .. import __version__
from ..bundle import BUNDLE_FILE, sha256_of
from ..decode.policies import Policy
from ..environment import environment
from ..power.clocks import Clocked, ClockReport, ClockWatch
from ..power.metering import Metering
from ..session import Session
from .modes import ModeTour
from .report import Conditions, PointKey, ProfilePoint, ProfileReport, Request
from .sampling import Rounds, Settings, measure, warm_up
from .traces import TraceRecorder

IDLE_S = 2.0


@dataclass(frozen=True)
class Wanted:
    """A point to measure; ``make`` gives a policy that has learnt nothing yet."""

    key: PointKey
    make: Callable[[], Policy]


FOUND_OUT = ("chosen", "costs", "power_source")
"""Of a policy's settings, what a run finds out and nobody asked for."""


@dataclass(frozen=True)
class Given:
    """What a report repeats as it was given: command, bundle folder, file of prompts."""

    command: str
    bundle: str
    prompt_file: str


def wanted_points(
    power_modes: Sequence[str | None], makers: Iterable[Callable[[], Policy]]
) -> list[Wanted]:
    """Each policy in each mode, every point once."""
    made = [(make, make()) for make in makers]
    found: list[Wanted] = []
    for mode in power_modes:
        for make, policy in made:
            told = policy.settings.items()
            settings = {name: value for name, value in told if name not in FOUND_OUT}
            key = PointKey(mode, policy.name, settings)
            if all(each.key != key for each in found):
                found.append(Wanted(key, make))
    return found


def request_of(
    session: Session,
    wanted: Sequence[Wanted],
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    metering: Metering,
) -> Request:
    """What the answers depend on."""
    return Request(
        bundle=sha256_of(session.bundle.path / BUNDLE_FILE),
        sdk=__version__,
        engine=session.engine.name,
        threads=session.engine.threads,
        device=session.engine.device,
        prompts=hashlib.sha256(json.dumps([list(ids) for ids in prompts]).encode()).hexdigest(),
        prompt_count=len(prompts),
        max_new_tokens=settings.max_new_tokens,
        within=settings.within,
        max_rounds=settings.max_rounds,
        min_seconds=settings.min_seconds,
        energy=metering.source,
        points=tuple(each.key for each in wanted),
    )


class Profiler:
    """Measures what ``wanted`` asks for and ``points`` has not; ``save`` gets the report after
    every point, ``on_round`` the point in work and its rounds. before: points of an earlier run,
    each of which is in the report until it is measured again."""

    def __init__(
        self,
        session: Session,
        given: Given,
        wanted: Sequence[Wanted],
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        metering: Metering,
        clocks: Clocked,
        save: Callable[[ProfileReport], None],
        on_round: Callable[[PointKey, Rounds], None] = lambda key, rounds: None,
    ) -> None:
        self.session = session
        self.given = given
        self.wanted = wanted
        self.prompts = prompts
        self.settings = settings
        self.request = request_of(session, wanted, prompts, settings, metering)
        self.points: list[ProfilePoint] = []
        self.before: list[ProfilePoint] = []
        self._metering = metering
        self._clocks = clocks
        self._save = save
        self._on_round = on_round

    def go_on_from(self, old: ProfileReport) -> str | None:
        """Takes over the points of ``old`` that are asked for here; None where it fits, else what
        is different about it.

        A profile that is finished and has all of them is measured again, point by point: until
        then its own stand in the report.
        """
        for name, now in vars(self.request).items():
            if name != "points" and getattr(old.request, name) != now:
                return name
        asked = [each.key for each in self.wanted]
        there = [point for point in old.points if point.key in asked]
        again = old.complete and len(there) == len(asked)
        self.points = [p for p in there if not again and p.key not in old.from_before]
        self.before = [p for p in there if p not in self.points]
        return None

    def run(self, tour: ModeTour) -> None:
        """All that is missing. An interrupt, or a reboot, leaves the points so far."""
        missing = self.missing()
        modes = list(dict.fromkeys(each.key.power_mode for each in missing))
        with tour.held(modes) as holding:
            for mode in holding:
                idle = self._metering.measure_idle(IDLE_S)
                for wanted in missing:
                    if wanted.key.power_mode == mode:
                        self.points.append(self._measured(wanted, idle))
                        self._save(self.report())

    def report(self) -> ProfileReport:
        """Of the points so far, in the order in which they were asked for."""
        order = [each.key for each in self.wanted]
        done = [point.key for point in self.points]
        before = [point for point in self.before if point.key not in done]
        points = sorted((*self.points, *before), key=lambda point: order.index(point.key))
        return ProfileReport(
            complete=not self.missing(),
            command=self.given.command,
            bundle=self.given.bundle,
            model=self.session.bundle.model.name,
            prompt_file=self.given.prompt_file,
            energy_reason=self._metering.reason,
            request=self.request,
            environment=environment(self.session.engine),
            points=tuple(points),
            from_before=tuple(point.key for point in points if point in before),
        )

    def missing(self) -> list[Wanted]:
        """What is still to be measured."""
        done = [point.key for point in self.points]
        return [each for each in self.wanted if each.key not in done]

    def _measured(self, wanted: Wanted, idle_watts: float | None) -> ProfilePoint:
        policy = wanted.make()
        began = perf_counter()
        warm_up(self.session, policy, self.prompts, self.settings.max_new_tokens)
        with ClockWatch(reader=self._clocks) as watch:
            rounds, trace = measure(
                self.session,
                policy,
                self.prompts,
                self.settings,
                self._metering,
                lambda rounds: self._on_round(wanted.key, rounds),
            )
        return self._point(wanted.key, rounds, trace, idle_watts, watch, perf_counter() - began)

    def _point(
        self,
        key: PointKey,
        rounds: Rounds,
        trace: TraceRecorder,
        idle_watts: float | None,
        watch: ClockWatch,
        seconds: float,
    ) -> ProfilePoint:
        iterations = rounds.total(lambda each: each.iterations)
        tokens = rounds.total(lambda each: each.tokens)
        return ProfilePoint(
            key=key,
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            tight=rounds.tight,
            tokens_per_s=rounds.tokens_per_s,
            joules_per_token=rounds.joules_per_token,
            watts=rounds.watts,
            reason=rounds.reason or self._metering.reason,
            total_is=rounds.rounds[0].total_is,
            counter_over_integrated=rounds.counter_over_integrated,
            decode_share=rounds.decode_share,
            idle_watts=idle_watts,
            tokens_per_iteration=tokens / iterations,
            verified_share=rounds.total(lambda each: each.verified) / iterations,
            generated_tokens=tokens,
            seconds=seconds,
            conditions=_conditions(watch.report()),
            trace=trace.trace(),
        )


def _conditions(report: ClockReport) -> Conditions:
    hottest = max(report.celsius, key=report.celsius.__getitem__, default=None)
    events = [f"{number} {what}" for what, number in report.events.items() if number]
    return Conditions(
        celsius=None if hottest is None else report.celsius[hottest],
        hottest=hottest,
        gpu_mhz=report.gpu_mhz,
        memory_mhz=report.emc_mhz,
        jetson_clocks=report.jetson_clocks,
        throttled_by=(*events, *report.throttled_by),
    )
