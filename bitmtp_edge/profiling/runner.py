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
from ..decode.costs import step_spread
from ..decode.policies import Hybrid, Policy
from ..environment import environment
from ..errors import UserError
from ..power.clocks import Clocked, ClockReport, ClockWatch
from ..power.metering import Metering
from ..session import Session
from ..wording import printable
from .modes import ModeTour
from .report import (
    Conditions,
    Failure,
    PointKey,
    ProfilePoint,
    ProfileReport,
    Request,
    Setting,
)
from .sampling import Rounds, Settings, measure, warm_up
from .traces import TraceRecorder

IDLE_S = 2.0


@dataclass(frozen=True)
class Wanted:
    """A point to measure; ``make`` gives a policy that has learnt nothing yet, in the power mode
    that holds then: what steps cost is measured there."""

    key: PointKey
    make: Callable[[], Policy]


@dataclass(frozen=True)
class Asked:
    """A policy with its settings as they were asked for, and what makes it."""

    policy: str
    settings: dict[str, Setting]
    make: Callable[[], Policy]


@dataclass(frozen=True)
class Given:
    """What a report repeats as it was given: command, bundle folder, file of prompts."""

    command: str
    bundle: str
    prompt_file: str


def wanted_points(power_modes: Sequence[str | None], asked: Iterable[Asked]) -> list[Wanted]:
    """Each policy in each mode, every point once."""
    policies = list(asked)
    found: list[Wanted] = []
    for mode in power_modes:
        for each in policies:
            key = PointKey(mode, each.policy, each.settings)
            if all(other.key != key for other in found):
                found.append(Wanted(key, each.make))
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


@dataclass
class Watcher:
    """What a profiler tells as it goes on, each time to do nothing unless it is given.

    saved: the report, after every point. doing: what it does now, for a line of progress. notice:
    what a user should know at once, in a line.
    """

    saved: Callable[[ProfileReport], None] = lambda report: None
    doing: Callable[[str], None] = lambda what: None
    notice: Callable[[str], None] = lambda line: None


class Profiler:
    """Measures what ``wanted`` asks for and ``points`` has not. before: points of an earlier run,
    each of which is in the report until it is measured again. failed: what could not be measured
    now."""

    def __init__(
        self,
        session: Session,
        given: Given,
        wanted: Sequence[Wanted],
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        metering: Metering,
        clocks: Clocked,
        watcher: Watcher,
    ) -> None:
        self.session = session
        self.given = given
        self.wanted = wanted
        self.prompts = prompts
        self.settings = settings
        self.request = request_of(session, wanted, prompts, settings, metering)
        self.points: list[ProfilePoint] = []
        self.before: list[ProfilePoint] = []
        self.failed: list[Failure] = []
        self.metering = metering
        self._clocks = clocks
        self._watcher = watcher
        self._sensor_failed = False  # and that was told

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
        """All that is missing and can be measured. Whatever ends it leaves the points so far."""
        missing = self.missing()

        def cannot(mode: str, error: UserError) -> None:
            self._fail([w.key for w in missing if w.key.power_mode == mode], str(error))

        modes = list(dict.fromkeys(each.key.power_mode for each in missing))
        with tour.held(modes, cannot) as holding:
            for mode in holding:
                self._watcher.doing("idle power")
                idle = self.metering.measure_idle(IDLE_S)
                for wanted in missing:
                    if wanted.key.power_mode == mode:
                        self._try(wanted, idle, tour)

    def _try(self, wanted: Wanted, idle_watts: float | None, tour: ModeTour) -> None:
        """A point, unless its power mode is another before or behind it."""
        mode = wanted.key.power_mode
        other, when = tour.other_than(mode), "before"
        if other is None:
            point = self._measured(wanted, idle_watts)
            other, when = tour.other_than(mode), "behind"
        if other is not None:
            told = (
                f"the power mode {when} it was {other}, not {mode}: something else sets it; "
                f"power --set-mode {mode} sets it back"
            )
            self._fail([wanted.key], told)
            return
        self.points.append(point)
        if point.busy is not None:
            self._watcher.notice(f"{point.key.name}: {point.busy}")
        self._watcher.saved(self.report())

    def _fail(self, keys: Sequence[PointKey], reason: str) -> None:
        names = ", ".join(key.name for key in keys)
        self._watcher.notice(f"{names}: no figures: {reason}")
        for key in keys:
            self.failed.append(Failure(key, _now(), reason))
            self._watcher.saved(self.report())

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
            energy_reason=self.metering.reason,
            request=self.request,
            environment=environment(self.session.engine),
            points=tuple(points),
            from_before=tuple(point.key for point in points if point in before),
            failed=tuple(sorted(self.failed, key=lambda each: order.index(each.key))),
        )

    def missing(self) -> list[Wanted]:
        """What is still to be measured."""
        done = [point.key for point in self.points]
        return [each for each in self.wanted if each.key not in done]

    def _measured(self, wanted: Wanted, idle_watts: float | None) -> ProfilePoint:
        key = wanted.key
        now = _Doing(key, len(self.prompts), self._watcher)
        now.prompt(0)
        policy = wanted.make()
        began = perf_counter()
        rounds, trace, conditions, spread = self._rounds(policy, now)
        iterations = rounds.total(lambda each: each.iterations)
        tokens = rounds.total(lambda each: each.tokens)
        found_out = isinstance(policy, Hybrid) and key.settings["min_prefix"] == "auto"
        return ProfilePoint(
            key=key,
            date=_now(),
            tight=rounds.tight,
            tokens_per_s=rounds.tokens_per_s,
            joules_per_token=rounds.joules_per_token,
            watts=rounds.watts,
            reason=rounds.reason or self.metering.reason,
            total_is=next((each.total_is for each in rounds.rounds if each.total_is), None),
            counter_over_integrated=rounds.counter_over_integrated,
            decode_share=rounds.decode_share,
            idle_watts=idle_watts,
            tokens_per_iteration=tokens / iterations,
            verified_share=rounds.total(lambda each: each.verified) / iterations,
            generated_tokens=tokens,
            seconds=perf_counter() - began,
            conditions=conditions,
            trace=trace.trace(),
            step_spread=spread,
            min_prefix=policy.settings["min_prefix"] if found_out else None,
        )

    def _rounds(
        self, policy: Policy, now: _Doing
    ) -> tuple[Rounds, TraceRecorder, Conditions, float]:
        """What :func:`measure` gives, the conditions meanwhile, and the spread of steps around."""
        session, prompts = self.session, self.prompts
        warm_up(session, policy, prompts, self.settings.max_new_tokens, now.prompt)
        spread = step_spread(session.engine, session.states)

        def on_round(rounds: Rounds) -> None:
            now.rounds = rounds
            self._see_sensor(now.key, rounds)

        with ClockWatch(reader=self._clocks) as watch:
            now.rounds = Rounds(self.settings)
            rounds, trace = measure(
                session, policy, prompts, self.settings, self.metering, on_round, now.prompt
            )
        spread = max(spread, step_spread(session.engine, session.states))
        return rounds, trace, _conditions(watch.report()), spread

    def _see_sensor(self, key: PointKey, rounds: Rounds) -> None:
        """Tells the first round without joules as it ends: hours may follow."""
        last = rounds.rounds[-1]
        if last.reason is not None and not self._sensor_failed:
            self._sensor_failed = True
            self._watcher.notice(
                f"{key.name}, round {len(rounds.rounds)}: no joules: {last.reason}"
            )


@dataclass
class _Doing:
    """The point in work, for a line of progress. rounds: those that have ended; None while it warms
    up."""

    key: PointKey
    prompts: int
    watcher: Watcher
    rounds: Rounds | None = None

    def prompt(self, number: int) -> None:
        """The prompt that begins, from 1 on; 0: none yet."""
        what = "warming up"
        if self.rounds is not None:
            done = self.rounds.rounds
            margin = self.rounds.tokens_per_s.margin if done else None
            what = f"round {len(done) + 1}" + ("" if margin is None else f" +-{margin:.1%}")
        at = f", prompt {number} of {self.prompts}" if number else ""
        self.watcher.doing(f"{printable(self.key.name)}: {what}{at}")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


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
