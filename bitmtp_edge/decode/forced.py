"""Outcomes that a benchmark dictates, to measure an iteration's cost apart from the model's skill.

All steps run as they would; only what is made of their outputs is decided beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from bitmtp_edge.decode.policies import Policy, PolicyAround
from bitmtp_edge.decode.sampling import Drafts, TokenChoice
from bitmtp_edge.engines.base import StepOutput
from bitmtp_edge.errors import UserError


class Outcome(NamedTuple):
    """What comes of one iteration: the confidence prefix h, how many drafts the verify step
    accepts, and whether there is one. Without one, h drafts are committed."""

    confident: int
    accepted: int
    verified: bool


@dataclass(eq=False)
class ForcedOutcomes(PolicyAround):
    """``policy``, with ``outcomes`` for its iterations: from the first in each reply, repeated.

    Where an iteration has fewer drafts than its outcome takes, it takes all. One that must verify
    (no drafts, or no room for more unverified tokens) accepts what its outcome says. trace: what
    the outcomes are called, where they have a name. Raises UserError for outcomes that no iteration
    has.
    """

    policy: Policy
    outcomes: tuple[Outcome, ...]
    trace: str | None = None

    def __post_init__(self) -> None:
        if not self.outcomes:
            raise UserError("there are no forced outcomes: expected at least one iteration")
        for index, (confident, accepted, verified) in enumerate(self.outcomes):
            if min(confident, accepted) < 0 or (not verified and confident < 1):
                raise UserError(
                    f"forced outcome {index} is ({confident}, {accepted}, {verified}): expected "
                    "lengths of 0 or more, and 1 or more where it commits without verifying"
                )
            if not verified and self.policy.max_drafts == 0:
                raise UserError(
                    f"forced outcome {index} commits drafts, but policy {self.policy.name} has none"
                )
        self.restart()

    @property
    def lossless(self) -> bool:
        return all(outcome.verified and outcome.accepted == 0 for outcome in self.outcomes)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            **self.policy.settings,
            "trace": self.trace,
            "forced_outcomes": len(self.outcomes),
        }

    def restart(self) -> None:
        self._iterations = 0
        self._outcome = self.outcomes[0]

    def confident(self, drafts: Drafts) -> int | None:
        self._outcome = self.outcomes[self._iterations % len(self.outcomes)]
        self._iterations += 1
        return min(self._outcome.confident, len(drafts.tokens))

    def unverified(self, confident: int | None) -> int:
        return 0 if self._outcome.verified else confident or 0

    def judge(self, choice: TokenChoice, output: StepOutput, drafts: Drafts) -> tuple[int, int]:
        accepted = min(self._outcome.accepted, len(drafts.tokens))
        logits = None if output.logits is None else output.logits[accepted:]
        rest = StepOutput(output.token_ids[accepted:], output.probability[accepted:], logits)
        _, following = choice.judge(rest, Drafts())
        return accepted, following


def force_reject(policy: Policy) -> ForcedOutcomes:
    """``policy`` with every draft rejected: iterations of one verified token, so AR's text."""
    return ForcedOutcomes(policy, (Outcome(0, 0, True),))
