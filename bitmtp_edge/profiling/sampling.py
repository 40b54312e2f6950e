"""One point measured: rounds over the prompts until their means are tight, or there were enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from ..decode.generate import GenerationResult
from ..decode.policies import Policy
from ..errors import UserError
from ..power.meter import Window
from ..power.metering import Metering
from ..power.report import EnergyReport
from ..session import Session
from .statistics import MIN_ROUNDS, Estimate, estimate
from .traces import TraceRecorder

WARM_UP_S = 1.0

OnPrompt = Callable[[int], None]


@dataclass(frozen=True)
class Settings:
    """within: the share of the mean that half its 95 % interval may have. max_rounds: when rounds
    end all the same. min_seconds: a prompt is decoded again and again for so long."""

    max_new_tokens: int
    within: float
    max_rounds: int
    min_seconds: float


@dataclass
class Round:
    """Sums over the prompts of one round. joules and those beside it: of decoding, None where
    ``reason`` says why, or there is no meter."""

    tokens: int = 0
    decode_s: float = 0.0
    iterations: int = 0
    verified: int = 0
    measured_s: float = 0.0
    joules: float | None = None
    counter: float | None = None
    integrated: float | None = None
    reason: str | None = None
    total_is: str | None = None

    def add(self, reply: GenerationResult) -> None:
        """One reply."""
        self.tokens += reply.generated_tokens
        self.decode_s += reply.decode_s
        self.iterations += reply.iterations
        self.verified += sum(reply.verified)

    def measured(self, energy: EnergyReport) -> None:
        """What the meter tells of all of them."""
        decode = energy.decode
        self.measured_s = decode.seconds
        self.joules = decode.joules
        self.counter = decode.counter_joules
        self.integrated = decode.integrated_joules
        self.reason = decode.reason
        self.total_is = energy.total_is


@dataclass
class Rounds:
    """All rounds of a point so far."""

    settings: Settings
    rounds: list[Round] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> Estimate:
        return estimate([each.tokens / each.decode_s for each in self.rounds])

    @property
    def joules_per_token(self) -> Estimate | None:
        return _estimate([r.joules / r.tokens for r in self.rounds if r.joules is not None])

    @property
    def watts(self) -> Estimate | None:
        return _estimate([r.joules / r.measured_s for r in self.rounds if r.joules is not None])

    @property
    def counter_over_integrated(self) -> float | None:
        """Of the rounds that have both."""
        pairs = [
            (each.counter, each.integrated)
            for each in self.rounds
            if each.counter is not None and each.integrated
        ]
        return sum(a for a, _ in pairs) / sum(b for _, b in pairs) if pairs else None

    @property
    def decode_share(self) -> float | None:
        """Of the time that joules are of, what was decoding: the rest is between replies."""
        measured = sum(each.measured_s for each in self.rounds)
        return sum(each.decode_s for each in self.rounds) / measured if measured else None

    @property
    def reason(self) -> str | None:
        """Why there are no joules, or only those of some rounds; None where each has them."""
        whys = [each.reason for each in self.rounds if each.reason is not None]
        measured = len(self.rounds) - len(whys)
        if not whys or not measured:
            return next(iter(whys), None)
        return f"joules are of {measured} of {len(self.rounds)} rounds: {whys[0]}"

    @property
    def tight(self) -> bool:
        """Whether both means are known as well as was asked for. Joules that the sensor cannot
        tell are not waited for."""
        joules, within = self.joules_per_token, self.settings.within
        return (
            len(self.rounds) >= MIN_ROUNDS
            and self.tokens_per_s.is_tight(within)
            and (joules is None or joules.is_tight(within))
        )

    @property
    def enough(self) -> bool:
        return self.tight or len(self.rounds) >= self.settings.max_rounds

    def total(self, of: Callable[[Round], int]) -> int:
        return sum(of(each) for each in self.rounds)


def warm_up(
    session: Session,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    most: int,
    on_prompt: OnPrompt = lambda number: None,
) -> None:
    """Every prompt once, and on until a second has passed: plans are made, and clocks rise.
    ``on_prompt`` is told each prompt's number, from 1 on, as it begins."""
    began = perf_counter()
    first = True
    while first or perf_counter() - began < WARM_UP_S:
        for number, ids in enumerate(prompts, 1):
            if not first and perf_counter() - began >= WARM_UP_S:
                break
            on_prompt(number)
            _whole(session.reply(session.decoder(policy), ids, most))
        first = False


def measure(
    session: Session,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    metering: Metering,
    on_round: Callable[[Rounds], None] = lambda rounds: None,
    on_prompt: OnPrompt = lambda number: None,
) -> tuple[Rounds, TraceRecorder]:
    """Rounds over ``prompts``, the ids of each, until there are enough; power over time is of the
    first. ``on_prompt``: as of :func:`warm_up`. UserError where no prompt gets a reply of any
    tokens."""
    done, trace = Rounds(settings), TraceRecorder()
    while not done.enough:
        window = metering.begin()
        try:
            here = _round(session, policy, prompts, settings, window, on_prompt)
            if not here.tokens or not here.decode_s:
                raise UserError("no prompt gets a reply, so there is nothing to measure")
            if window is not None:
                here.measured(window.end(here.tokens))
        except BaseException:
            if window is not None:
                window.abandon()
            raise
        if window is not None and not done.rounds:
            trace.add(window)
        done.rounds.append(here)
        on_round(done)
    return done, trace


def _round(
    session: Session,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    window: Window | None,
    on_prompt: OnPrompt,
) -> Round:
    """Every prompt, read once and then decoded again and again for ``min_seconds``.

    A sensor tells nothing of a reply of some milliseconds. Behind the first one, the prompt's rows
    are still there, so that what is measured is decoding alone.
    """
    here = Round()

    def decoding_begins(done: int, total: int) -> None:
        if window is not None and done == total:
            window.mark_decode()

    for number, ids in enumerate(prompts):
        on_prompt(number + 1)
        decoder = session.decoder(policy)
        if window is not None and number:
            window.mark_prefill()
        most = settings.max_new_tokens
        reply = _whole(session.reply(decoder, ids, most, on_prefill=decoding_begins))
        began = perf_counter() - reply.decode_s
        here.add(reply)
        while perf_counter() - began < settings.min_seconds:
            here.add(_whole(session.reply(decoder, ids, most)))
    return here


def _whole(reply: GenerationResult) -> GenerationResult:
    """``reply``; an interrupt that ended it ends the profile."""
    if reply.finish_reason == "interrupted":
        raise KeyboardInterrupt
    return reply


def _estimate(values: list[float]) -> Estimate | None:
    return estimate(values) if values else None
