"""`bitmtp-edge bench` of block policies: predicted speed-ups, fixed blocks and chosen ones."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from bitmtp_edge import benchmark, session
from bitmtp_edge.benchmark_report import NOISY
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.costs import CostTable
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import Engine

from ..decode.trace_engine import cost_table
from .conftest import BLOCKS, SHORT, Verb


def test_blocks_are_compared_beside_each_other(
    verb: Verb, tiny_ternary_bundle: Bundle, prompts: Path
) -> None:
    limits = ("--repeat", 1, "--max-new-tokens", 6, "--json")
    blocks = ("--block", 2, "--block", 4, "--tau", 0.001)
    done = verb("bench", tiny_ternary_bundle.path, "--prompts", prompts, *blocks, *limits)
    report = done.json
    assert done.code == 0 and report["ok"]
    lossless = [p for p in report["policies"] if p["lossless"]]
    assert [p["policy"] for p in lossless] == ["ar", "speculative", "speculative"]
    assert all(p["same_tokens_as_ar"] for p in lossless)
    assert not all(p["same_tokens_as_ar"] for p in report["policies"])
    assert [(policy["policy"], policy["settings"]) for policy in report["policies"]] == [
        ("ar", {}),
        ("confidence", {"block": 2, "tau": 0.001}),
        ("confidence", {"block": 4, "tau": 0.001}),
        ("speculative", {"block": 2}),
        ("speculative", {"block": 4}),
        ("hybrid", {"block": 2, "tau": 0.001, "min_prefix": 2}),
        ("hybrid", {"block": 4, "tau": 0.001, "min_prefix": 2}),
    ]


def test_a_speed_up_follows_from_the_steps(verb: Verb, block_bundle: Path, prompts: Path) -> None:
    report = verb("bench", block_bundle, "--prompts", prompts, *BLOCKS, *SHORT, "--json").json
    assert report["synthetic"] is False
    ar, speculative, hybrid = report["policies"]
    assert (ar["draft_cost"], ar["verify_cost"], ar["predicted_speedup"]) == (0, 1, 1)
    assert (ar["verified_share"], ar["mean_confident"], ar["mean_accepted"]) == (1, None, None)
    assert speculative["verified_share"] == 1 and speculative["mean_confident"] is None
    assert hybrid["mean_confident"] >= 0 and 0 <= hybrid["verified_share"] <= 1
    for policy in (speculative, hybrid):
        assert policy["draft_cost"] > 0 and policy["verify_cost"] > 0
        ours = [row for row in report["replies"] if row["policy"] == policy["policy"]]
        settings = policy["settings"]
        assert {row["block"] for row in ours} == {settings["block"]}
        assert {row["min_prefix"] for row in ours} == {settings.get("min_prefix")}
        predicted = [row["predicted_speedup"] for row in ours]
        assert policy["predicted_speedup"] == median(predicted)
        ratio = policy["speedup_over_ar"] / policy["predicted_speedup"]
        told = policy["measured_over_predicted"]
        assert told is None if report["noisy"] else told == pytest.approx(ratio)
    for step in report["steps"]:
        first, third = step["quartiles_ms"]
        assert 0 < first <= step["median_ms"] <= third


def test_a_noisy_run_has_no_ratio(
    verb: Verb, block_bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a machine's times, these are told as they would be of a quiet and of a busy one."""
    report = {}
    for spread in (1.0, NOISY + 0.4):
        monkeypatch.setattr(benchmark, "_spread", lambda steps, spread=spread: spread)
        asked = ("bench", block_bundle, "--prompts", prompts, *BLOCKS, *SHORT)
        report[spread] = verb(*asked).out
        told = verb(*asked, "--json").json
        ratios = [policy["measured_over_predicted"] for policy in told["policies"]]
        assert told["step_spread"] == spread and told["noisy"] is (spread > 1)
        assert all((ratio is None) is told["noisy"] for ratio in ratios)
    assert [("noisy run, so no ratio: " in out) for out in report.values()] == [False, True]
    assert "the third quartile is 1.7 times the first" in report[NOISY + 0.4]


def test_auto_is_measured_beside_fixed_blocks(
    verb: Verb, block_bundle: Path, prompts: Path
) -> None:
    blocks = (*BLOCKS, "--block", "auto", "--block", 2)
    done = verb("bench", block_bundle, "--prompts", prompts, *blocks, *SHORT, "--json")
    report = done.json
    assert [policy["settings"].get("block") for policy in report["policies"]] == [
        None,
        "auto",
        2,
        "auto",
        2,
    ]
    for policy in report["policies"][1::2]:
        chosen = sum(choice["iterations"] for choice in policy["settings"]["chosen"])
        replies = [row for row in report["replies"] if row["policy"] == policy["policy"]]
        assert chosen > 0 and replies
    assert report["policies"][1]["same_tokens_as_ar"] is True
    told = verb("bench", block_bundle, "--prompts", prompts, *blocks, *SHORT).out
    assert "speculative, block auto: its tokens are AR's, token for token" in told
    assert "speculative, block auto: ar, " in told or "(all verified), " in told


def test_auto_that_never_drafts_is_told(
    verb: Verb, block_bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dear(bundle: Bundle, engine: Engine, states: ReplayStates, *rest: object) -> CostTable:
        return cost_table(states, lambda width: width**3)

    monkeypatch.setattr(session, "costs_of", dear)
    auto = ("--policy", "speculative", "--block", "auto", *SHORT)
    told = verb("bench", block_bundle, "--prompts", prompts, *auto).out
    assert "speculative, block auto: ar, " in told
