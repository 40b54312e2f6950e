"""`bitmtp-edge bench`: its figures, its check against AR, and its prompt files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import get_args

import pytest

from bitmtp_edge import benchmark, session
from bitmtp_edge.benchmark import TimedEngine, read_prompts
from bitmtp_edge.benchmark_report import NOISY, StepCost
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.costs import CostTable
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.stopping import StopRules
from bitmtp_edge.engines.base import Engine, ReplayState, Role, StepOutput, Window
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.errors import UserError

from ..decode.trace_engine import cost_table
from .conftest import Done

Verb = Callable[..., Done]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("the hat\n\nan inn\n")
    return path


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
    replay = TimedEngine.replay

    def lossy(self: TimedEngine, state: ReplayState, window: Window) -> StepOutput:
        output = replay(self, state, window)
        return replace(output, token_ids=output.token_ids + (state.outputs > 1))

    monkeypatch.setattr(TimedEngine, "replay", lossy)
    done = verb("bench", bundle, "--prompts", prompts, "--repeat", 1, "--max-new-tokens", 8)
    assert done.code == 1
    assert "nested, gamma 2: its tokens DIFFER from AR's: at token 0 of a reply: token " in done.out


@pytest.mark.parametrize("where", ["warm-up", "a reply"])
def test_an_interrupt_ends_it(
    where: str, verb: Verb, bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = {"warm-up": 3, "a reply": 150}[where]
    replay = TimedEngine.replay
    calls: list[int] = []

    def interrupted(self: TimedEngine, state: ReplayState, window: Window) -> StepOutput:
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return replay(self, state, window)

    monkeypatch.setattr(TimedEngine, "replay", interrupted)
    done = verb("bench", bundle, "--prompts", prompts)
    assert done.code == 130
    assert done.out.strip() == ""


def test_an_interrupt_ends_the_measurement_of_python(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: CpuEngine, state: ReplayState, window: Window) -> StepOutput:
        raise KeyboardInterrupt

    with session.Session.open(bundle) as opened:
        monkeypatch.setattr(CpuEngine, "replay", interrupted)
        with pytest.raises(KeyboardInterrupt):
            benchmark.python_ms_per_step(opened, opened.policy("ar"), [1, 2, 3])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", " one \n\n# two\n", ["one", "# two"]),
        ("windows.txt", "\ufeffone\r\ntwo\u2028three\r\n", ["one", "two\u2028three"]),
        ("a.jsonl", '{"prompt": "a\u2028b"}\n', ["a\u2028b"]),
        ("a.jsonl", '{"prompt": "one\\ntwo", "id": 3}\n\n{"prompt": " x"}\n', ["one\ntwo", " x"]),
    ],
)
def test_prompt_files(tmp_path: Path, name: str, text: str, expected: Sequence[str]) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert read_prompts(path) == expected


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("a.txt", b"", "holds no prompts"),
        ("a.txt", b"\n \n", "holds no prompts"),
        ("a.txt", b"ok\n\xff", "not UTF-8 text (byte 3)"),
        ("a.jsonl", b'{"prompt": "x"}\n{', "line 2: expected an object"),
        ("a.jsonl", b"[1]", "line 1: expected an object"),
        ("a.jsonl", b'{"prompt": 3}', "line 1: expected an object"),
        ("a.jsonl", b'{"prompt": ""}', "line 1: expected an object"),
        ("a.jsonl", b"[" * 100_000, "line 1: expected an object"),
    ],
)
def test_prompt_files_that_are_none(tmp_path: Path, name: str, data: bytes, told: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"\.(txt|jsonl)") as error:
        read_prompts(path)
    assert told in str(error.value)


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
        ((), "Missing option '--prompts'"),
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


def test_the_shipped_prompts_can_be_read() -> None:
    assert len(read_prompts(ROOT / "examples" / "prompts.txt")) == 8


def test_every_policy_that_the_command_line_offers_can_be_had(bundle: Path) -> None:
    with session.Session.open(bundle) as opened:
        assert [opened.policy(name).name for name in opened.policies] == ["ar", "nested"]


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


def test_the_time_of_python_is_measured_on_the_cpu_engine_alone(bundle: Path) -> None:
    pytest.importorskip("onnxruntime")
    with session.Session.open(bundle, "onnxruntime") as opened:
        assert benchmark.python_ms_per_step(opened, opened.policy("ar"), [1, 2]) is None


BLOCKS = ("--policy", "ar", "--policy", "speculative", "--policy", "hybrid")
SHORT = ("--repeat", 1, "--max-new-tokens", 24)


@pytest.fixture
def block_bundle(
    tiny_ternary_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A bundle with mask embeddings, to which costs may be written."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(tiny_ternary_bundle.path, tmp_path / "blocks")
    return tmp_path / "blocks"


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


def test_the_spread_of_a_run_is_that_of_its_steps_by_how_often_they_ran() -> None:
    steps = [
        StepCost("draft", 4, 4, 512, 30, 5.0, (4.0, 6.0)),
        StepCost("verify", 1, 1, 512, 10, 5.0, (5.0, 5.0)),
    ]
    assert benchmark._spread(steps) == pytest.approx((30 * 1.5 + 10 * 1.0) / 40)


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
    replay = TimedEngine.replay

    def lossy(self: TimedEngine, state: ReplayState, window: Window) -> StepOutput:
        output = replay(self, state, window)
        wide = state.role == "verify" and state.outputs > 1
        return replace(output, token_ids=output.token_ids + wide)

    monkeypatch.setattr(TimedEngine, "replay", lossy)
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
    def dear(bundle: Bundle, engine: Engine, states: ReplayStates, notice: object) -> CostTable:
        return cost_table(states, lambda width: width**3)

    monkeypatch.setattr(session, "costs_of", dear)
    auto = ("--policy", "speculative", "--block", "auto", *SHORT)
    told = verb("bench", block_bundle, "--prompts", prompts, *auto).out
    assert "speculative, block auto: ar, " in told


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
