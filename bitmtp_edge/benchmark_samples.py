"""What a benchmark gathers as it runs: replies, their steps, and what those cost in AR steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from .decode.generate import GenerationResult
from .decode.policies import Policy
from .engines.base import ReplayState, Role
from .session import Session
from .timed_engine import TimedEngine


class Timed:
    """A session whose steps are timed. runtime: its name, where several are compared."""

    def __init__(self, runtime: str | None, session: Session) -> None:
        self.runtime = runtime
        self.engine = TimedEngine(session.engine)
        self.session = Session(session.bundle, self.engine)
        self.session.states = session.states
        self.session.metering = session.metering

    def medians(self) -> dict[ReplayState, float]:
        """Seconds of each kind of step."""
        return {state: median(times) for state, times in self.engine.seconds.items()}


@dataclass
class Samples:
    """Replies of one policy on one runtime, in order of (round, prompt), and the decode steps of
    each."""

    timed: Timed
    policy: Policy
    replies: list[GenerationResult] = field(default_factory=list)
    steps: list[list[ReplayState]] = field(default_factory=list)

    def take(self, reply: GenerationResult, replayed: list[ReplayState]) -> None:
        """``replayed``: prefill, then decoding."""
        count = reply.draft_steps + reply.verify_steps
        self.replies.append(reply)
        self.steps.append(replayed[len(replayed) - count :])

    @property
    def gamma(self) -> int | None:
        return self.policy.max_drafts or None

    def speedups(self, other: Samples | None) -> list[float | None]:
        """Of each reply, over the other's on the same prompt in the same round."""
        if other is None:
            return [None] * len(self.replies)
        pairs = zip(self.replies, other.replies, strict=True)
        return [
            ours.tokens_per_s / theirs.tokens_per_s
            if ours.tokens_per_s and theirs.tokens_per_s
            else None
            for ours, theirs in pairs
        ]


class Costs:
    """Steps of one runtime in steps of ``ar``, by the median of each kind."""

    def __init__(self, timed: Timed, ar: Samples | None) -> None:
        self._medians = timed.medians()
        medians = ar.timed.medians() if ar else {}
        steps = [medians[state] for reply in ar.steps for state in reply] if ar else []
        self.ar = sum(steps) / len(steps) if steps else None

    def of(self, steps: Iterable[ReplayState], role: Role) -> float | None:
        """All of ``steps`` that are of ``role``; None without AR."""
        if self.ar is None:
            return None
        return sum(self._medians[state] for state in steps if state.role == role) / self.ar

    def speedup(self, reply: GenerationResult, steps: Sequence[ReplayState]) -> float | None:
        """What the steps of a reply predict; None without AR, or for an empty reply."""
        draft, verify = self.of(steps, "draft"), self.of(steps, "verify")
        if draft is None or verify is None or not reply.iterations:
            return None
        iteration = (draft + verify) / reply.iterations  # the verified share is in it
        return reply.tokens_per_iteration / iteration
