"""`bitmtp-edge bench` with dictated acceptance: every draft rejected, and traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bitmtp_edge.engines.base import ReplayState, StepOutput, Window
from bitmtp_edge.timed_engine import TimedEngine

from .conftest import BLOCKS, SHORT, Verb


def test_rejected_drafts_leave_ars_text(verb: Verb, block_bundle: Path, prompts: Path) -> None:
    forced = (*BLOCKS, "--force-reject", *SHORT)
    report = verb("bench", block_bundle, "--prompts", prompts, *forced, "--json").json
    assert report["ok"] and report["synthetic"] is True
    for policy in report["policies"][1:]:
        assert policy["lossless"] and policy["same_tokens_as_ar"] is True
        assert (policy["verified_share"], policy["mean_accepted"]) == (1, 0)
        assert policy["tokens_per_iteration"] == 1
    told = verb("bench", block_bundle, "--prompts", prompts, *forced).out
    assert told.startswith("synthetic acceptance: ")
    assert "hybrid, block 4, min-prefix 2: its tokens are AR's, token for token" in told


def test_a_lossy_step_is_told_under_forced_rejection(
    verb: Verb, block_bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = TimedEngine.start

    def lossy(self: TimedEngine, state: ReplayState, window: Window) -> StepOutput:
        output = start(self, state, window)
        wide = state.role == "verify" and state.outputs > 1
        return replace(output, token_ids=output.token_ids + wide)

    monkeypatch.setattr(TimedEngine, "start", lossy)
    done = verb("bench", block_bundle, "--prompts", prompts, *BLOCKS, "--force-reject", *SHORT)
    assert done.code == 1
    assert "speculative, block 4: its tokens DIFFER from AR's" in done.out


def test_a_trace_dictates_outcomes_and_length(
    verb: Verb, block_bundle: Path, prompts: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"h": 3, "a": 0, "verified": false}\n{"h": 1, "a": 4, "verified": true}\n')
    dictated = ("--policy", "ar", "--policy", "hybrid", "--accept-trace", trace, *SHORT)
    report = verb("bench", block_bundle, "--prompts", prompts, *dictated, "--json").json
    assert report["synthetic"] is True
    for policy in report["policies"]:
        assert policy["generated_tokens"] == 2 * 24
    hybrid = report["policies"][1]
    assert hybrid["mean_confident"] == pytest.approx(2, abs=0.5)
    assert not hybrid["lossless"]
    told = verb("bench", block_bundle, "--prompts", prompts, *dictated).out
    assert told.startswith("synthetic acceptance: ") and "its tokens" not in told


def test_the_prediction_is_tokens_over_costs(
    verb: Verb, block_bundle: Path, prompts: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    trace.write_text("2 0 0\n2 0 0\n0 1 1\n0 1 1\n")
    dictated = ("--accept-trace", trace, "--policy", "ar", "--policy", "hybrid")
    limits = ("--repeat", 1, "--max-new-tokens", 33)
    report = verb("bench", block_bundle, "--prompts", prompts, *dictated, *limits, "--json").json
    _, hybrid = report["policies"]
    assert hybrid["verified_share"] == pytest.approx(0.5, abs=0.1)
    iteration = hybrid["draft_cost"] + hybrid["verified_share"] * hybrid["verify_cost"]
    predicted = hybrid["tokens_per_iteration"] / iteration
    assert hybrid["predicted_speedup"] == pytest.approx(predicted, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--accept-trace", "TRACE"), "iteration 2: verified is true, and policy confidence never"),
        (("--accept-trace", "TRACE", "--policy", "speculative"), "policy speculative always verif"),
        (("--accept-trace", "TRACE", "--policy", "hybrid", "--block", 2), "2: a is 4, and policy"),
        (("--min-prefix", "some"), "'some' is neither auto nor a whole number"),
        (("--force-reject", "--accept-trace", "x"), "dictate different things: give one"),
        (("--force-reject", "--policy", "ar"), "no policy here makes any: leave them out"),
        (("--force-reject", "--block", "auto"), "--block auto chooses by what comes of drafts"),
        (("--accept-trace", "/nonexistent/t"), "/nonexistent/t: No such file or directory"),
        (("--block", "automatic"), "'automatic' is neither auto nor a whole number"),
        (("--block", "0"), "'0' is neither auto nor a whole number of 1 or more"),
        (("--policy", "ar", "--block", "auto"), "error: --block has no effect on policy ar"),
    ],
)
def test_what_cannot_be_dictated_is_one_line(
    verb: Verb,
    block_bundle: Path,
    prompts: Path,
    tmp_path: Path,
    arguments: tuple[object, ...],
    told: str,
) -> None:
    trace = tmp_path / "trace"
    trace.write_text("2 0 0\n1 4 1\n")
    given = [trace if each == "TRACE" else each for each in arguments]
    assert told in verb("bench", block_bundle, "--prompts", prompts, *given).refused()
