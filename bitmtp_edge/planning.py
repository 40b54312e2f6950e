"""``plan``: whether a bundle fits a board, with which context, and the rates to expect there.

From bundle.json and the board's profile alone. What fits is our own layout plus estimates, and
rates are predictions (:mod:`step_prediction`): a report says which is which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bitmtp_edge.profiles import PowerMode, Profile

from .bundle import Bundle
from .decode.forced import ForcedOutcomes, Outcome
from .decode.policies import AutoRegressive, BlockPolicy, NestedSelfSpeculation, Policy
from .decode.replay_states import ReplayStates
from .engines.base import ReplayState, Role
from .errors import UserError
from .footprint import ESTIMATED, Footprint, footprint
from .step_prediction import ASSUMPTIONS, StepPrediction

SHORT = 256  # rows of history that the first of the rates are for
NOTICE = "predicted from bytes, clocks and nodes: nothing was measured on a Jetson"

Seconds = Callable[[Role, int, int], float]


@dataclass(frozen=True)
class Rate:
    """Decoding with one policy in one power mode.

    trace: what the acceptance is taken from, None for ar. history: rows before a step.
    tokens_per_s: predicted. at_most: what the nominal bandwidth allows, were all else free.
    """

    mode: str
    policy: str
    trace: str | None
    tokens_per_iteration: float
    history: int
    tokens_per_s: float
    at_most: float


@dataclass(frozen=True)
class Plan:
    """What :func:`plan` finds.

    context: tokens that were asked for. segment: of the KV buffer that holds them. largest_context:
    None where not even the smallest segment fits. available: bytes, of the board. rates: behind
    short and full history, in the context that was asked for, or in the largest that fits where it
    does not; none where nothing fits.
    """

    model: str
    profile: Profile
    context: int
    segment: int
    footprint: Footprint
    available: int
    largest_context: int | None
    rates: tuple[Rate, ...]

    @property
    def fits(self) -> bool:
        return self.footprint.total <= self.available

    def to_dict(self) -> dict[str, Any]:
        """What ``plan --json`` prints."""
        return {
            "ok": self.fits,
            "predicted": NOTICE,
            "model": self.model,
            "profile": asdict(self.profile),
            "context": self.context,
            "segment": self.segment,
            "bytes": {**asdict(self.footprint), "total": self.footprint.total},
            "estimated": list(ESTIMATED),
            "available": self.available,
            "largest_context": self.largest_context,
            "rates": [asdict(rate) for rate in self.rates],
            "assumptions": [asdict(each) for each in ASSUMPTIONS],
        }


def plan(
    bundle: Bundle,
    profile: Profile,
    policies: Sequence[Policy],
    *,
    context: int | None = None,
    modes: Sequence[PowerMode] | None = None,
) -> Plan:
    """Plans ``bundle`` on the board of ``profile``.

    policies: ar, and policies whose outcomes are dictated. context: tokens to serve; None: all that
    the bundle was exported with. modes: power modes to predict for; None: all of the board's.
    Raises UserError for a context beyond the bundle's.
    """
    most = bundle.model.context
    if context is not None and not 2 <= context <= most:
        raise UserError(
            f"--context is {context}, and {bundle.model.name} serves 2 to {most} tokens: ask for "
            "fewer, or export the bundle with a longer context"
        )
    states = ReplayStates.of(bundle)
    segment = states.segment_for(context or most)
    available = profile.available_mb << 20
    fitting = [
        each
        for each in states.segments
        if footprint(bundle, _up_to(states, each)).total <= available
    ]
    asked = context or most
    largest = min(fitting[-1], most) if fitting else None
    served = asked if segment in fitting else largest
    histories = () if served is None else dict.fromkeys((min(SHORT, served - 1), served - 1))
    return Plan(
        model=bundle.model.name,
        profile=profile,
        context=asked,
        segment=segment,
        footprint=footprint(bundle, _up_to(states, segment)),
        available=available,
        largest_context=largest,
        rates=tuple(
            _rate(bundle, states, mode, policy, history)
            for mode in (profile.modes if modes is None else modes)
            for policy in policies
            for history in histories
        ),
    )


def _up_to(states: ReplayStates, segment: int) -> Iterable[ReplayState]:
    return (state for state in states.all() if state.segment <= segment)


def _rate(
    bundle: Bundle, states: ReplayStates, mode: PowerMode, policy: Policy, history: int
) -> Rate:
    steps = StepPrediction(bundle, mode)

    def predicted(role: Role, width: int, outputs: int) -> float:
        return steps.seconds(role, width, outputs, history)

    def least(role: Role, width: int, outputs: int) -> float:
        return steps.least_seconds(role, history)

    tokens, iterations, seconds = cost(policy, states, predicted)
    return Rate(
        mode.name,
        policy.name,
        policy.trace if isinstance(policy, ForcedOutcomes) else None,
        tokens / iterations,
        history,
        tokens / seconds,
        tokens / cost(policy, states, least)[2],
    )


def cost(policy: Policy, states: ReplayStates, seconds: Seconds) -> tuple[int, int, float]:
    """Tokens, iterations and seconds of one turn of a policy's dictated outcomes; of ar, of one
    step. ``seconds``: of a step of a role, width and outputs."""
    if isinstance(policy, ForcedOutcomes):
        if isinstance(policy.policy, NestedSelfSpeculation):
            return _nested(policy.policy.gamma, policy.outcomes, states, seconds)
        assert isinstance(policy.policy, BlockPolicy)
        return _blocks(policy.policy.block, policy.outcomes, states, seconds)
    assert isinstance(policy, AutoRegressive)
    return 1, 1, seconds("verify", states.width("verify", 1, 1), 1)


def _nested(
    gamma: int, outcomes: Sequence[Outcome], states: ReplayStates, seconds: Seconds
) -> tuple[int, int, float]:
    width = states.width("verify", gamma + 1, gamma + 1)
    draft = seconds("draft", states.width("draft", 1, 1), 1)
    tokens = sum(min(outcome.accepted, gamma) + 1 for outcome in outcomes)
    step = gamma * draft + seconds("verify", width, width)
    return tokens, len(outcomes), len(outcomes) * step


def _blocks(
    block: int, outcomes: Sequence[Outcome], states: ReplayStates, seconds: Seconds
) -> tuple[int, int, float]:
    """Each draft step also computes the rows of what the iteration before it committed."""
    # The outcomes come round: what the last one leaves pending is what the first one finds.
    pending = 1 if outcomes[-1].verified else min(outcomes[-1].confident, block)
    tokens, total = 0, 0.0
    for outcome in outcomes:
        width = states.width("draft", pending + block - 1, block)
        total += seconds("draft", width, min(width, block))
        if outcome.verified:
            # Where draft rows are not final the verify step computes the pending ones again.
            rows = block + (1 if states.draft_rows_final else pending)
            width = states.width("verify", rows, block + 1)
            total += seconds("verify", width, width)
            tokens, pending = tokens + min(outcome.accepted, block) + 1, 1
        else:
            pending = min(outcome.confident, block)
            tokens += pending
    return tokens, len(outcomes), total
