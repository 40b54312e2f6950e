"""The built-in traces: what they promise of tokens, verify steps and acceptance."""

from __future__ import annotations

import pytest

from bitmtp_edge.builtin_traces import built_in
from bitmtp_edge.decode.forced import ForcedOutcomes, Outcome
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    ConfidenceOnly,
    Hybrid,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)


def traces(policy: Policy) -> dict[str, tuple[Outcome, ...]]:
    found = {}
    for each in built_in(policy):
        assert isinstance(each, ForcedOutcomes) and each.trace is not None
        assert each.policy is policy
        found[each.trace] = each.outcomes
    return found


def committed(outcome: Outcome) -> int:
    return outcome.accepted + 1 if outcome.verified else outcome.confident


@pytest.mark.parametrize(
    ("policy", "verified"),
    [(Hybrid(8, 0.9, 2), 0.3), (ConfidenceOnly(8, 0.9), 0.0), (SpeculativeOnly(8), 1.0)],
    ids=lambda value: getattr(value, "name", value),
)
def test_blocks(policy: Policy, verified: float) -> None:
    found = traces(policy)
    assert list(found) == ["4.6", "6.7", "7.1"]
    for name, outcomes in found.items():
        assert sum(map(committed, outcomes)) / len(outcomes) == pytest.approx(float(name))
        share = sum(outcome.verified for outcome in outcomes) / len(outcomes)
        assert share == pytest.approx(verified)
        assert all(max(o.confident, o.accepted) <= policy.max_drafts for o in outcomes)


@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 6, 8])
def test_nested(gamma: int) -> None:
    ((name, outcomes),) = traces(NestedSelfSpeculation(gamma)).items()
    accepted = sum(outcome.accepted for outcome in outcomes)
    assert name == "95.2 % accepted"
    assert accepted / (gamma * len(outcomes)) == pytest.approx(0.952, abs=3e-3)
    assert all(o.verified and 0 <= o.accepted <= gamma for o in outcomes)


def test_a_policy_without_drafts_has_none() -> None:
    policy = AutoRegressive()
    assert built_in(policy) == [policy]
