"""`bitmtp-edge bench`: its figures, its table and its check against AR."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import get_args

import pytest

from bitmtp_edge import session
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.stopping import StopRules
from bitmtp_edge.engines.base import ReplayState, Role, StepOutput, Window
from bitmtp_edge.timed_engine import TimedEngine

from ..power.fake_metering import SHORT, FakeMetering
from .conftest import Verb


def test_json_has_the_figures_of_every_policy(verb: Verb, bundle: Path, prompts: Path) -> None:
    limits = ("--repeat", 2, "--max-new-tokens", 16, "--gamma", 3)
    done = verb("bench", bundle, "--prompts", prompts, *limits, "--json")
    assert done.code == 0
    report = done.json
    assert report["ok"]
    assert (report["prompts"], report["repeat"]) == (2, 2)
    ar, nested = report["policies"]
    assert (ar["policy"], nested["policy"]) == ("ar", "nested")
    assert nested["settings"]["gamma"] == 3
    assert ar["replies"] == nested["replies"] == 4
    assert ar["generated_tokens"] == nested["generated_tokens"]
    assert ar["speedup_over_ar"] == 1.0
    assert (ar["acceptance_rate"], ar["tokens_per_iteration"]) == (None, 1.0)
    assert 0 <= nested["acceptance_rate"] <= 1
    assert 1 <= nested["tokens_per_iteration"] <= 4
    assert nested["speedup_over_ar"] > 0
    assert nested["same_tokens_as_ar"] is True
    for policy in (ar, nested):
        assert policy["prefill_tokens_per_s"] > 0
        assert policy["decode_tokens_per_s"] > 0
        assert policy["python_ms_per_step"] > 0
    steps = {(s["role"], s["width"], s["outputs"]): s for s in report["steps"]}
    assert steps.keys() >= {("draft", 1, 1), ("verify", 1, 1), ("verify", 5, 5)}
    assert all(s["count"] > 0 and s["median_ms"] > 0 for s in report["steps"])
    assert {role for role, *_ in steps} == set(get_args(Role))


def test_joules_of_every_policy(
    verb: Verb, bundle: Path, prompts: Path, meter: FakeMetering
) -> None:
    limits = ("--prompts", prompts, "--repeat", 2, "--max-new-tokens", 16)
    report = verb("bench", bundle, *limits, "--json").json
    assert report["energy"] == "fake: VDD_IN"
    for policy in report["policies"]:
        assert policy["joules_per_token"] == pytest.approx(0.2)
        assert policy["joules_quartiles"] == pytest.approx([0.2, 0.2])
        assert (policy["watts"], policy["measured_replies"]) == (2.0, 4)
        assert policy["energy_reason"] is None
    assert report["replies"][0]["joules_per_token"] == pytest.approx(0.2)
    lines = verb("bench", bundle, *limits).out.splitlines()
    assert lines[2].split()[-2:] == ["J/token", "W"]
    assert lines[3].split()[-2:] == ["0.2", "2"]
    assert "ar, J/token: median of 4 of 4 replies, quartiles 0.2 .. 0.2" in lines


def test_replies_too_short_for_the_sensor(
    verb: Verb, bundle: Path, prompts: Path, meter: FakeMetering
) -> None:
    limits = ("--prompts", prompts, "--repeat", 1, "--max-new-tokens", 3)
    ar = verb("bench", bundle, *limits, "--json").json["policies"][0]
    assert (ar["joules_per_token"], ar["measured_replies"]) == (None, 0)
    assert ar["energy_reason"] == SHORT
    assert f"ar, J/token: {SHORT}" in verb("bench", bundle, *limits).out


def test_several_gammas_share_one_baseline(
    verb: Verb, bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int] = []
    reply = session.Session.reply

    def record(self: session.Session, decoder: Decoder, *rest: object) -> object:
        order.append(decoder.policy.max_drafts)
        return reply(self, decoder, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(session.Session, "reply", record)
    gammas = ("--gamma", 1, "--gamma", 4, "--gamma", 1)
    limits = ("--repeat", 2, "--max-new-tokens", 6)
    report = verb("bench", bundle, "--prompts", prompts, *gammas, *limits, "--json").json
    assert [policy["gamma"] for policy in report["policies"]] == [None, 1, 4]
    assert order[3:15] == [0, 1, 4, 4, 1, 0, 4, 1, 0, 0, 1, 4]  # after the warm-up: drift cancels

    rows = report["replies"]
    places = [(gamma, r, p) for gamma in (None, 1, 4) for r in (0, 1) for p in (0, 1)]
    assert [(row["gamma"], row["round"], row["prompt"]) for row in rows] == places
    for policy in report["policies"]:
        ours = [row for row in rows if row["gamma"] == policy["gamma"]]
        for row, ar in zip(ours, rows[:4], strict=True):
            assert row["tokens_per_s"] == row["generated_tokens"] / row["decode_s"]
            assert row["speedup_over_ar"] == row["tokens_per_s"] / ar["tokens_per_s"]
        speedups = sorted(row["speedup_over_ar"] for row in ours)
        assert policy["speedup_over_ar"] == median(speedups)
        assert policy["speedup_pairs"] == 4
        first, third = policy["speedup_quartiles"]
        assert speedups[0] <= first <= speedups[1] and speedups[2] <= third <= speedups[3]


def test_an_empty_reply_is_in_no_pair(
    verb: Verb, bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = StopRules(frozenset(range(10_000)))
    monkeypatch.setattr(session.Session, "stop_rules", lambda self: nothing)
    report = verb("bench", bundle, "--prompts", prompts, "--repeat", 1, "--json").json
    for policy in report["policies"]:
        assert (policy["speedup_over_ar"], policy["speedup_quartiles"]) == (None, None)
        assert policy["speedup_pairs"] == 0


def test_the_table_tells_what_the_json_does(verb: Verb, bundle: Path, prompts: Path) -> None:
    limits = ("--repeat", 1, "--max-new-tokens", 16)
    done = verb("bench", bundle, "--prompts", prompts, *limits)
    assert done.code == 0
    assert "2 prompts, 1 rounds, up to 16 tokens; medians" in done.out
    assert "nested, gamma 2, over AR: median of 2 pairs, quartiles " in done.out
    assert "(a pair: AR's decode seconds a token over the policy's, same prompt, " in done.out
    counts = [int(line.split()[-1]) for line in done.out.splitlines() if line[:6] == "verify"]
    assert counts and min(counts) >= 20
    assert " kinds of step run fewer than 20 times (see --json)" in done.out
    assert "ms a step, measured with an empty plan" in done.out
    assert "nested, gamma 2: its tokens are AR's, token for token (2 replies)" in done.out
    assert "bench: 100%  4/4 replies" in done.err


def test_one_policy_alone_is_compared_with_nothing(verb: Verb, bundle: Path, prompts: Path) -> None:
    limits = ("--repeat", 1, "--max-new-tokens", 4)
    done = verb("bench", bundle, "--prompts", prompts, "--policy", "nested", *limits, "--json")
    (nested,) = done.json["policies"]
    assert nested["speedup_over_ar"] is None
    assert nested["same_tokens_as_ar"] is None
    assert all(row["speedup_over_ar"] is None for row in done.json["replies"])


def test_other_tokens_than_ar_are_told(
    verb: Verb, bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = TimedEngine.start

    def lossy(self: TimedEngine, state: ReplayState, window: Window) -> StepOutput:
        output = start(self, state, window)
        return replace(output, token_ids=output.token_ids + (state.outputs > 1))

    monkeypatch.setattr(TimedEngine, "start", lossy)
    done = verb("bench", bundle, "--prompts", prompts, "--repeat", 1, "--max-new-tokens", 8)
    assert done.code == 1
    assert "nested, gamma 2: its tokens DIFFER from AR's: at token 0 of a reply: token " in done.out


@pytest.mark.parametrize("where", ["warm-up", "a reply"])
def test_an_interrupt_ends_it(
    where: str, verb: Verb, bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = {"warm-up": 3, "a reply": 150}[where]
    start = TimedEngine.start
    calls: list[int] = []

    def interrupted(self: TimedEngine, state: ReplayState, window: Window) -> StepOutput:
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return start(self, state, window)

    monkeypatch.setattr(TimedEngine, "start", interrupted)
    done = verb("bench", bundle, "--prompts", prompts)
    assert done.code == 130
    assert done.out.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--prompts", "/nonexistent/p.txt"), "/nonexistent/p.txt: No such file or directory"),
        (("--prompts", "PROMPTS", "--repeat", "0"), "--repeat"),
        (("--prompts", "PROMPTS", "--gamma", "0"), "--gamma"),
        (("--prompts", "PROMPTS", "--policy", "ar", "--gamma", "2"), "no effect on policy ar"),
        (("--prompts", "PROMPTS", "--policy", "magic"), "'magic' is not one of"),
        (("--prompts", "PROMPTS", "--policy", "hybrid"), "no mask embeddings"),
        (("--prompts", "PROMPTS", "--block", "4", "--policy", "ar"), "no effect on policy ar"),
        (("--prompts", "PROMPTS", "--engine", "magic"), "no engine 'magic'"),
        ((), "no prompts are given: add --prompts FILE"),
    ],
)
def test_bad_input_is_one_line(
    verb: Verb, bundle: Path, prompts: Path, arguments: tuple[str, ...], told: str
) -> None:
    given = [str(prompts) if argument == "PROMPTS" else argument for argument in arguments]
    assert told in verb("bench", bundle, *given).refused()


def test_a_prompt_over_the_context_is_told(verb: Verb, bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("x" * 300)
    done = verb("bench", bundle, "--prompts", path)
    assert done.code == 2
    assert "the context of 256" in done.err.splitlines()[-1]


def test_every_policy_that_the_command_line_offers_can_be_had(bundle: Path) -> None:
    with session.Session.open(bundle) as opened:
        assert [opened.policy(name).name for name in opened.policies] == ["ar", "nested"]
