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
    """Sums over the prompts of one round. joules and those beside it: of decoding, and None as soon
    as one prompt has no figure; ``reason`` says why."""

    tokens: int = 0
    decode_s: float = 0.0
    iterations: int = 0
    verified: int = 0
    measured_s: float = 0.0
    joules: float | None = 0.0
    counter: float | None = 0.0
    integrated: float | None = 0.0
    reason: str | None = None
    total_is: str | None = None

    def add(self, replies: Sequence[GenerationResult], energy: EnergyReport | None) -> None:
        """One prompt's replies, and the energy of their decoding."""
        for reply in replies:
            self.tokens += reply.generated_tokens
            self.decode_s += reply.decode_s
            self.iterations += reply.iterations
            self.verified += sum(reply.verified)
        if energy is None:
            self.joules = self.counter = self.integrated = None
            return
        decode = energy.decode
        self.joules = _sum(self.joules, decode.joules)
        self.counter = _sum(self.counter, decode.counter_joules)
        self.integrated = _sum(self.integrated, decode.integrated_joules)
        self.measured_s += decode.seconds
        self.reason = self.reason or decode.reason
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
    def reason(self) -> str | None:
        """Why there are no joules; None where there are."""
        if self.joules_per_token is not None:
            return None
        return next((each.reason for each in self.rounds if each.reason is not None), None)

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


def warm_up(session: Session, policy: Policy, prompts: Sequence[Sequence[int]], most: int) -> None:
    """Every prompt once, and on until a second has passed: plans are made, and clocks rise."""
    began = perf_counter()
    first = True
    while first or perf_counter() - began < WARM_UP_S:
        for ids in prompts:
            if not first and perf_counter() - began >= WARM_UP_S:
                break
            _whole(session.reply(session.decoder(policy), ids, most))
        first = False


def measure(
    session: Session,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    metering: Metering,
    on_round: Callable[[Rounds], None] = lambda rounds: None,
) -> tuple[Rounds, TraceRecorder]:
    """Rounds over ``prompts``, the ids of each, until there are enough; power over time is of the
    first. UserError where no prompt gets a reply of any tokens."""
    done, trace = Rounds(settings), TraceRecorder()
    while not done.enough:
        here = Round()
        for ids in prompts:
            sample(session, policy, ids, settings, metering, here, None if done.rounds else trace)
        if not here.tokens or not here.decode_s:
            raise UserError("no prompt gets a reply, so there is nothing to measure: give others")
        done.rounds.append(here)
        on_round(done)
    return done, trace


def sample(
    session: Session,
    policy: Policy,
    ids: Sequence[int],
    settings: Settings,
    metering: Metering,
    into: Round,
    trace: TraceRecorder | None,
) -> None:
    """One prompt: read once, then decoded again and again for ``min_seconds``.

    A sensor tells nothing of a reply of some milliseconds. Behind the first one, the prompt's rows
    are still there, so that what is measured is decoding alone.
    """
    decoder = session.decoder(policy)
    window = metering.begin()

    def decoding_begins(done: int, total: int) -> None:
        if window is not None and done == total:
            window.mark_decode()

    try:
        most = settings.max_new_tokens
        replies = [_whole(session.reply(decoder, ids, most, on_prefill=decoding_begins))]
        began = perf_counter() - replies[0].decode_s
        while perf_counter() - began < settings.min_seconds:
            replies.append(_whole(session.reply(decoder, ids, most)))
        energy = _ended(window, replies)
    except BaseException:
        if window is not None:
            window.abandon()
        raise
    into.add(replies, energy)
    if trace is not None and window is not None and energy is not None:
        trace.add(window, energy)


def _ended(window: Window | None, replies: Sequence[GenerationResult]) -> EnergyReport | None:
    if window is None:
        return None
    return window.end(sum(reply.generated_tokens for reply in replies))


def _whole(reply: GenerationResult) -> GenerationResult:
    """``reply``; an interrupt that ended it ends the profile."""
    if reply.finish_reason == "interrupted":
        raise KeyboardInterrupt
    return reply


def _sum(total: float | None, more: float | None) -> float | None:
    return None if total is None or more is None else total + more


def _estimate(values: list[float]) -> Estimate | None:
    return estimate(values) if values else None
