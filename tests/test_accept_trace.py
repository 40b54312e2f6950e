"""Traces of outcomes, and what is told of files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from bitmtp_edge.accept_trace import dictated, read_accept_trace
from bitmtp_edge.decode.forced import ForcedOutcomes, Outcome
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    ConfidenceOnly,
    Hybrid,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)
from bitmtp_edge.errors import UserError


def test_lines_and_objects(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text('\ufeff3 5 1\r\n\n 4 0 false\n{"h": 0, "a": 2, "verified": true}\n0 8 TRUE')
    assert read_accept_trace(path) == (
        Outcome(3, 5, True),
        Outcome(4, 0, False),
        Outcome(0, 2, True),
        Outcome(0, 8, True),
    )


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "holds no iterations: expected the confident drafts h"),
        (b"\n \n", "holds no iterations"),
        (b"1 2 1\n\xff", "not UTF-8 text (byte 6)"),
        (b"1 2 1\n3 4\n", "line 2: expected the confident drafts h"),
        (b"1 2 3\n", "line 1: expected"),
        (b"-1 2 1\n", "line 1: expected"),
        (b"1.5 2 1\n", "line 1: expected"),
        (b'{"h": 1, "a": 2}\n', "line 1: expected"),
        (b'{"h": 1, "a": 2, "verified": 1}\n', "line 1: expected"),
        (b'{"h": true, "a": 2, "verified": true}\n', "line 1: expected"),
        (b'{"h": 1, "a": -2, "verified": true}\n', "line 1: expected"),
        (b'{"h": 1, "a": 2, "verified": true', "line 1: expected"),
        (b"9" * 5000 + b" 1 1\n", "line 1: expected"),
        (b'{"h": 1, "verified": true, "a": ' + b"9" * 5000 + b"}", "line 1: expected"),
        (b'{"h": ' + b"[" * 100_000, "line 1: expected"),
        (b"3 5 1\n0 3 0\n", "line 2: an iteration that nothing verifies commits its h"),
    ],
)
def test_files_that_are_none(tmp_path: Path, data: bytes, told: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(UserError) as error:
        read_accept_trace(path)
    assert told in str(error.value)
    assert str(path) in str(error.value)


VERIFIED, NOT = Outcome(2, 3, True), Outcome(2, 0, False)


@pytest.mark.parametrize(
    ("policy", "outcomes"),
    [
        (Hybrid(4, 0.9, 2), (VERIFIED, NOT, Outcome(4, 4, True))),
        (SpeculativeOnly(3), (VERIFIED,)),
        (NestedSelfSpeculation(3), (VERIFIED,)),
        (ConfidenceOnly(2, 0.9), (NOT,)),
    ],
)
def test_a_trace_is_dictated_to_what_could_have_made_it(
    policy: Policy, outcomes: tuple[Outcome, ...]
) -> None:
    forced = dictated(policy, outcomes, "t")
    assert isinstance(forced, ForcedOutcomes) and forced.outcomes == outcomes


def test_without_drafts_nothing_is_dictated() -> None:
    assert dictated(AutoRegressive(), (VERIFIED, NOT), "t") == AutoRegressive()


@pytest.mark.parametrize(
    ("policy", "outcome", "told"),
    [
        (Hybrid(4, 0.9, 2), Outcome(5, 0, False), "h is 5, and policy hybrid makes 4 drafts"),
        (Hybrid(4, 0.9, 2), Outcome(0, 5, True), "a is 5, and policy hybrid makes 4 drafts"),
        (SpeculativeOnly(4), NOT, "verified is false, and policy speculative always verifies"),
        (NestedSelfSpeculation(4), NOT, "verified is false, and policy nested always verifies"),
        (ConfidenceOnly(4, 0.9), VERIFIED, "verified is true, and policy confidence never verif"),
    ],
)
def test_what_a_policy_never_does_is_refused(policy: Policy, outcome: Outcome, told: str) -> None:
    fits = NOT if isinstance(policy, ConfidenceOnly) else Outcome(0, 1, True)
    with pytest.raises(UserError) as error:
        dictated(policy, (fits, outcome), "t")
    assert str(error.value).startswith(f"t, iteration 2: {told}")
    assert "\n" not in str(error.value)
