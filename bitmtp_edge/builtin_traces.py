"""Acceptance traces of the papers' tasks, for models whose own drafts are worth nothing.

BitMTP reports tokens an iteration of hybrid decoding with blocks of 8: 4.6 on IFEval, 6.7 and 7.1
on HumanEval+ and MBPP+ (section 4.2); how these spread over iterations, and that verify steps
decide 30 % of them, is ours. BitNest reports that 95.2 % of drafts are accepted (section 4.2).
"""

from __future__ import annotations

from .decode.forced import ForcedOutcomes, Outcome
from .decode.policies import (
    BlockPolicy,
    ConfidenceOnly,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)

# Tokens that each of ten iterations commits.
_BLOCKS = {
    "4.6": (5, 6, 5, 3, 5, 4, 4, 5, 3, 6),
    "6.7": (8, 7, 8, 5, 7, 8, 6, 7, 5, 6),
    "7.1": (8, 8, 8, 6, 7, 8, 6, 7, 6, 7),
}
_VERIFIED = (3, 6, 8)  # of the ten, those that hybrid decoding verifies
_NESTED_DRAFTS, _NESTED_REJECTED = 84, 4


def built_in(policy: Policy) -> list[Policy]:
    """``policy`` under each trace that there is for it; one without drafts as it is.

    A smaller block takes the traces of a block of 8, cut to its own drafts.
    """
    if isinstance(policy, NestedSelfSpeculation):
        return [ForcedOutcomes(policy, _nested_outcomes(policy.gamma), "95.2 % accepted")]
    if isinstance(policy, BlockPolicy):
        return [
            ForcedOutcomes(policy, _block_outcomes(policy, tokens), name)
            for name, tokens in _BLOCKS.items()
        ]
    return [policy]


def _nested_outcomes(gamma: int) -> tuple[Outcome, ...]:
    """Iterations of about 84 drafts, of which four reject their last."""
    count = max(round(_NESTED_DRAFTS / gamma), _NESTED_REJECTED)
    short = {(2 * i + 1) * count // (2 * _NESTED_REJECTED) for i in range(_NESTED_REJECTED)}
    return tuple(Outcome(0, gamma - (index in short), True) for index in range(count))


def _block_outcomes(policy: BlockPolicy, tokens: tuple[int, ...]) -> tuple[Outcome, ...]:
    """Iterations that commit ``tokens`` each, all or some or none of them verified."""
    verified: tuple[int, ...] = _VERIFIED
    if isinstance(policy, SpeculativeOnly):
        verified = tuple(range(len(tokens)))
    elif type(policy) is ConfidenceOnly:
        verified = ()
    return tuple(
        Outcome(0, count - 1, True) if index in verified else Outcome(count, 0, False)
        for index, count in enumerate(tokens)
    )
