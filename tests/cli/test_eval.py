"""`bitmtp-edge eval`: its tables, its files, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.bundle import BUNDLE_FILE, Bundle, sha256_of
from bitmtp_edge.cli.eval_tables import COLUMNS, Group, bands
from bitmtp_edge.decode.generate import GenerationResult
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.session import Session

from .conftest import Verb

SHORT = ("--max-new-tokens", 12)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, answer, more in (
        ("chat", None, {}),
        ("sums", "4", {}),
        ("sorting", "5", {}),
        ("unseen", "6", {"apart": True}),
    ):
        lines = [
            json.dumps({"task": name, "prompt": prompt, "answer": answer, **more}) + "\n"
            for prompt in ("the hat", "an inn")
        ]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def test_everything_is_in_the_file(
    verb: Verb, tiny_ternary_bundle: Bundle, tasks: Path, tmp_path: Path
) -> None:
    target = tmp_path / "report.json"
    path = tiny_ternary_bundle.path
    blocks = ("--block", 2, "--block", 4, "--min-prefix", 1, "--min-prefix", 3, "--tau", 0.5)
    done = verb("eval", path, "--tasks", tasks, *blocks, *SHORT, "--json", target)
    assert done.code == 0, done
    report: dict[str, Any] = json.loads(target.read_text())
    assert report["ok"] and not report["interrupted"]
    assert report["bundle"]["sha256"] == sha256_of(path / BUNDLE_FILE)
    assert report["baseline"] is None
    assert report["environment"]["versions"]["bitmtp-edge"]
    assert [task["task"] for task in report["tasks"]] == ["sorting", "sums", "unseen", "chat"]
    rows = [
        (each["policy"], each["settings"].get("block"), each["settings"].get("min_prefix"))
        for each in report["policies"]
    ]
    assert rows == [
        ("ar", None, None),
        ("confidence", 2, None),
        ("confidence", 4, None),
        ("speculative", 2, None),
        ("speculative", 4, None),
        ("hybrid", 2, 1),
        ("hybrid", 4, 1),
        ("hybrid", 4, 3),
    ]
    for each in report["policies"]:
        assert each["settings"].get("tau", 0.5) == 0.5
        assert each["average"]["tasks"] == 2
        assert len(each["replies"]) == 8
    assert "eval: 100%  64/64 replies" in done.err
    assert not list(tmp_path.glob("*.partial"))


def test_the_tables(verb: Verb, tiny_ternary_bundle: Bundle, tasks: Path) -> None:
    path = tiny_ternary_bundle.path
    done = verb("eval", path, "--tasks", tasks, *SHORT, "--limit", 1, "--baseline", path)
    assert done.code == 0, done
    assert f"in brackets over ar of the baseline, {path}" in done.out
    assert max(map(len, done.out.splitlines()[5:])) <= COLUMNS
    quality, *others = done.out.split("\n\n")[1:-1]
    assert "sorting sums unseen (apart)" in " ".join(quality.split("\n")[0].split())
    labels = ["baseline ar", "ar", "confidence D=4", "speculative D=4", "hybrid D=4 m=2"]
    for band in (quality, *others):
        assert [line[:17].rstrip() for line in band.splitlines()[2:]] == labels
    assert "speculative D=4: its tokens are ar's, token for token (4 replies)" in done.out
    [progress] = [band.splitlines() for band in others if "ver." in band]
    shares = [line.split()[-1] for line in progress[2:]]
    assert shares[:2] == ["-", "-"] and shares[3] == "100%"  # nothing is drafted; all is judged


def test_groups_that_do_not_fit_begin_another_band() -> None:
    group = Group("t", ("a", "bb"), [("1", "2"), ("10", "20")])
    lines = list(bands(["x", "yyyy"], [group] * 3, 30))
    assert lines == [
        "           t        t",
        "policy    a  bb    a  bb",
        "x         1   2    1   2",
        "yyyy     10  20   10  20",
        "",
        "           t",
        "policy    a  bb",
        "x         1   2",
        "yyyy     10  20",
        "",
    ]


def wrap_reply(monkeypatch: pytest.MonkeyPatch, change: Callable[..., GenerationResult]) -> None:
    reply = Session.reply

    def changed(self: Session, decoder: Decoder, *rest: Any) -> GenerationResult:
        return change(decoder.policy.name, reply(self, decoder, *rest))

    monkeypatch.setattr(Session, "reply", changed)


def test_other_tokens_than_ar_are_told(
    verb: Verb, tiny_ternary_bundle: Bundle, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lossy(policy: str, reply: GenerationResult) -> GenerationResult:
        return replace(reply, token_ids=[1]) if policy == "speculative" else reply

    wrap_reply(monkeypatch, lossy)
    done = verb("eval", tiny_ternary_bundle.path, "--tasks", tasks, *SHORT)
    assert done.code == 1
    assert "speculative D=4: its tokens DIFFER from ar's in 8 of 8 replies" in done.out


def test_an_interrupt_keeps_the_results_so_far(
    verb: Verb,
    tiny_ternary_bundle: Bundle,
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def interrupted(policy: str, reply: GenerationResult) -> GenerationResult:
        seen.append(policy)
        return replace(reply, finish_reason="interrupted") if len(seen) == 9 else reply

    wrap_reply(monkeypatch, interrupted)
    target = tmp_path / "report.json"
    policy = ("--policy", "speculative", "--json", target)
    done = verb("eval", tiny_ternary_bundle.path, "--tasks", tasks, *SHORT, *policy)
    assert done.code == 130
    assert "INTERRUPTED: 3 of 8 prompts" in done.out
    report = json.loads(target.read_text())
    assert report["interrupted"]
    assert [task["done"] for task in report["tasks"]] == [1, 1, 1, 0]


def test_a_file_that_cannot_be_written_leaves_the_figures(
    verb: Verb,
    tiny_ternary_bundle: Bundle,
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()

    def gone(policy: str, reply: GenerationResult) -> GenerationResult:
        if folder.exists():
            folder.rmdir()
        return reply

    wrap_reply(monkeypatch, gone)
    arguments = ("--policy", "ar", "--json", folder / "report.json")
    done = verb("eval", tiny_ternary_bundle.path, "--tasks", tasks, *SHORT, *arguments)
    assert done.code == 2
    assert done.err.endswith(f"error: {folder / 'report.json'}: No such file or directory\n")
    assert "4 tasks, 8 prompts" in done.out


def test_a_link_to_a_report_stays_one(
    verb: Verb, tiny_ternary_bundle: Bundle, tasks: Path, tmp_path: Path
) -> None:
    link, target = tmp_path / "link.json", tmp_path / "report.json"
    link.symlink_to(target)
    arguments = ("--policy", "ar", "--limit", 1, "--json", link)
    done = verb("eval", tiny_ternary_bundle.path, "--tasks", tasks, *SHORT, *arguments)
    assert done.code == 0, done
    assert link.is_symlink() and json.loads(target.read_text())["ok"]


def test_a_nested_bundle_has_its_gammas(verb: Verb, bundle: Path, tasks: Path) -> None:
    done = verb("eval", bundle, "--tasks", tasks / "sums.jsonl", "--gamma", 1, "--gamma", 3, *SHORT)
    assert done.code == 0, done
    assert "nested gamma=1: its tokens are ar's, token for token (2 replies)" in done.out
    assert "nested gamma=3: its tokens are ar's" in done.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Missing option '--tasks'"),
        (("--tasks", "/nonexistent.jsonl"), "/nonexistent.jsonl: No such file or directory"),
        (("--tasks", "TASKS", "--limit", 0), "--limit"),
        (("--tasks", "TASKS", "--policy", "ar", "--tau", "0.5"), "no effect on policy ar"),
        (("--tasks", "TASKS", "--policy", "nested"), "no base plane"),
        (("--tasks", "TASKS", "--block", 5), "trained for blocks of 4"),
        (("--tasks", "TASKS", "--min-prefix", 5), "error: --min-prefix is 5: expected 1 to 4"),
        (
            ("--tasks", "TASKS", "--block", 2, "--min-prefix", 3),
            "error: --min-prefix is 3: expected 1 to 2",
        ),
        (("--tasks", "TASKS", "--plot", "a.png"), "expected a name that ends in .svg"),
        (("--tasks", "TASKS", "--json", "/nonexistent/a.json"), "expected a file name in a"),
        (("--tasks", "TASKS", "--json", "TASKS"), "expected a file name in a"),
        (("--tasks", "TASKS", "--json", "/dev/null"), "/dev/null cannot be written"),
        (("--tasks", "TASKS", "--baseline", "/nonexistent"), "/nonexistent does not exist"),
    ],
)
def test_bad_input_is_one_line(
    verb: Verb, tiny_ternary_bundle: Bundle, tasks: Path, arguments: Sequence[object], told: str
) -> None:
    given = [tasks if argument == "TASKS" else argument for argument in arguments]
    assert told in verb("eval", tiny_ternary_bundle.path, *given).refused()


def test_a_missing_matplotlib_is_told_before_the_work(
    verb: Verb, tiny_ternary_bundle: Bundle, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = verb("eval", tiny_ternary_bundle.path, "--tasks", tasks, "--plot", "a.svg")
    assert "matplotlib is not installed: install the extra 'train'" in done.refused()


def test_the_picture(verb: Verb, tiny_ternary_bundle: Bundle, tasks: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "a.svg"
    done = verb("eval", tiny_ternary_bundle.path, "--tasks", tasks, *SHORT, "--plot", target)
    assert done.code == 0, done
    assert "<svg" in target.read_text()
