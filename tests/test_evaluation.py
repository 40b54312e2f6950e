"""The figures of an evaluation, on replies made up for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge import evaluation
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.generate import GenerationResult
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import AutoRegressive, Hybrid, Policy, SpeculativeOnly
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.errors import UserError
from bitmtp_edge.evaluation import Evaluation
from bitmtp_edge.evaluation_report import EvalReport, PolicyFigures
from bitmtp_edge.scoring import Item, Task
from bitmtp_edge.session import Session

SUMS = Task("sums", False, (Item("a", "4"), Item("bb", "6")))
MORE = Task("more", False, (Item("c", "x"),))
ODD = Task("odd", True, (Item("d", "9"),))
CHAT = Task("chat", False, (Item("e", None), Item("f", None), Item("g", None)))

VARIED = list(range(12))
SAME = [5] * 12


def result(text: str, ids: Sequence[int], seconds: float, **more: Any) -> GenerationResult:
    values: dict[str, Any] = dict(
        text=text,
        token_ids=list(ids),
        finish_reason="stop",
        stop_string=None,
        prompt_tokens=3,
        reused_tokens=0,
        generated_tokens=len(ids),
        iterations=len(ids),
        tokens_per_iteration=1.0,
        accepted_lengths=[0] * len(ids),
        confident_lengths=[],
        verified=[True] * len(ids),
        drafted_tokens=0,
        draft_steps=0,
        verify_steps=len(ids),
        prefill_s=0.5,
        decode_s=seconds,
        tokens_per_s=len(ids) / seconds,
        engine="cpu",
        policy="ar",
        policy_settings={},
        sampling={},
    )
    return GenerationResult(**{**values, **more})


def hybrid(text: str, ids: Sequence[int], seconds: float) -> GenerationResult:
    """Four iterations: confident 3, 3, 0 and 1; the last two verified."""
    return result(
        text,
        ids,
        seconds,
        iterations=4,
        accepted_lengths=[3, 3, 1, 2],
        confident_lengths=[3, 3, 0, 1],
        verified=[False, False, True, True],
    )


@dataclass
class Script:
    """Replies by bundle, policy and prompt, instead of decoding; ``asked``: in which order."""

    make: Callable[[Path, Policy, str], GenerationResult]
    asked: list[tuple[str, str]]
    interrupt_at: int | None = None


@pytest.fixture
def session(tiny_ternary_bundle: Bundle) -> Iterator[Session]:
    with Session(tiny_ternary_bundle, CpuEngine(tiny_ternary_bundle, threads=1)) as opened:
        yield opened


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Sessions reply by this; a prompt is known by its text."""
    found = Script(lambda path, policy, prompt: result("#### 4", VARIED, 2.0), [])

    def prompt_ids(self: Session, text: str, *, raw: bool = False) -> list[int]:
        return [ord(character) for character in text]

    def reply(
        self: Session, decoder: Decoder, ids: Sequence[int], limit: int, *rest: object
    ) -> GenerationResult:
        prompt = "".join(map(chr, ids))
        if limit == evaluation.WARM_UP_TOKENS:
            return result("", [1], 1.0)
        found.asked.append((decoder.policy.name, prompt))
        if len(found.asked) == found.interrupt_at:
            return replace(result("", [], 1.0), finish_reason="interrupted")
        return found.make(self.bundle.path, decoder.policy, prompt)

    monkeypatch.setattr(Session, "prompt_ids", prompt_ids)
    monkeypatch.setattr(Session, "reply", reply)
    return found


def evaluated(session: Session, tasks: list[Task], *policies: Policy, **more: Any) -> EvalReport:
    evaluation = Evaluation(session, policies, tasks, **more)
    heard: list[str] = []
    evaluation.run(heard.append)
    report = evaluation.report()
    if not report.interrupted:
        assert len(heard) == evaluation.total
    return report


def test_figures_of_a_task(session: Session, script: Script) -> None:
    replies = {
        ("ar", "a"): result("#### 4", VARIED, 2.0),
        ("ar", "bb"): result("#### 5", SAME, 4.0),
        ("hybrid", "a"): hybrid("#### 4.0", VARIED, 1.0),
        ("hybrid", "bb"): replace(hybrid("#### 6", SAME[:8], 1.0), finish_reason="length"),
    }
    script.make = lambda path, policy, prompt: replies[policy.name, prompt]
    report = evaluated(session, [SUMS], Hybrid(4, 0.9, 2), AutoRegressive())
    ar, ours = report.policies
    assert (ar.policy, ours.policy) == ("ar", "hybrid")
    assert ours.settings == {"block": 4, "tau": 0.9, "min_prefix": 2}
    (first,), (second,) = ar.tasks, ours.tasks
    assert (first.score, second.score) == (50.0, 100.0)
    assert first.tokens_per_s == 24 / 6
    assert second.tokens_per_s == 20 / 2
    assert (first.speedup_over_ar, second.speedup_over_ar) == (1.0, 2.5)
    assert second.speedup_over_baseline is None
    assert (second.generated_tokens, second.iterations, second.decode_s) == (20, 8, 2.0)
    assert (first.tokens_per_iteration, second.tokens_per_iteration) == (1.0, 2.5)
    assert (first.verified_share, second.verified_share) == (1.0, 0.5)
    assert (first.mean_confident, second.mean_confident) == (None, 1.75)
    assert (first.mean_accepted, second.mean_accepted) == (None, 2.25)
    assert (first.repetitive, second.repetitive) == ([1], [1])
    assert first.distinct_4grams == (1 + 1 / 9) / 2
    assert second.tokens_per_iteration_distinct == 12 / 4
    assert (first.same_as_ar, first.different) == (1.0, [])
    assert (second.same_as_ar, second.different) == (0.5, [1])
    assert (first.cut, second.cut) == (0, 1)
    last = ours.replies[1]
    assert (last.item, last.answer, last.right, last.same_as_ar) == (1, "6", True, False)
    assert (last.iterations, last.verified, last.finish_reason) == (4, 2, "length")
    assert report.ok  # hybrid may differ


def test_the_average_is_of_tasks_that_are_scored_and_not_apart(
    session: Session, script: Script
) -> None:
    def make(path: Path, policy: Policy, prompt: str) -> GenerationResult:
        seconds = {"a": 1.0, "bb": 1.0, "c": 4.0}.get(prompt, 9.0)
        seconds /= 1 if policy.name == "ar" else 2
        return result("x" if prompt == "c" else "4", VARIED, seconds)

    script.make = make
    report = evaluated(session, [SUMS, MORE, ODD, CHAT], SpeculativeOnly(4))
    assert [(t.task, t.scored, t.apart, t.items, t.done) for t in report.tasks] == [
        ("sums", True, False, 2, 2),
        ("more", True, False, 1, 1),
        ("odd", True, True, 1, 1),
        ("chat", False, False, 3, 3),
    ]
    ours = report.policies[1]
    assert [task.score for task in ours.tasks] == [50.0, 100.0, 0.0, None]
    average = ours.average
    assert average is not None
    assert (average.tasks, average.score) == (2, 75.0)
    assert average.tokens_per_s == (24 / 1 + 12 / 2) / 2
    assert average.speedup_over_ar == 2.0
    assert average.mean_confident is None
    assert average.mean_accepted == 0
    chat = [row for row in ours.replies if row.task == "chat"]
    assert [(row.answer, row.right) for row in chat] == [(None, None)] * 3


def test_without_scored_tasks_there_is_no_average(session: Session, script: Script) -> None:
    report = evaluated(session, [CHAT, ODD], SpeculativeOnly(4))
    assert [figures.average for figures in report.policies] == [None, None]


def test_the_baseline_is_an_ar_of_its_own(
    session: Session, script: Script, fp16_bundle: Bundle
) -> None:
    def make(path: Path, policy: Policy, prompt: str) -> GenerationResult:
        if path == fp16_bundle.path:
            return result("#### 6", SAME, 6.0)
        return result("#### 4", VARIED, 4.0 if policy.name == "ar" else 2.0)

    script.make = make
    with Session(fp16_bundle, CpuEngine(fp16_bundle, threads=1)) as baseline:
        report = evaluated(session, [MORE], SpeculativeOnly(4), baseline=baseline)
    matched, ar, ours = report.policies
    assert [figures.baseline for figures in report.policies] == [True, False, False]
    assert report.baseline is not None and report.baseline.path == str(fp16_bundle.path)
    assert [figures.tasks[0].speedup_over_baseline for figures in report.policies] == [1, 1.5, 3]
    assert [figures.tasks[0].speedup_over_ar for figures in report.policies] == [None, 1, 2]
    assert (matched.tasks[0].same_as_ar, matched.tasks[0].different) == (None, None)
    for figures, own, over in ((matched, None, 1), (ar, 1, 1.5), (ours, 2, 3)):
        average = figures.average
        assert average is not None
        assert (average.speedup_over_ar, average.speedup_over_baseline) == (own, over)


def test_a_lossless_policy_that_differs_is_told(session: Session, script: Script) -> None:
    def make(path: Path, policy: Policy, prompt: str) -> GenerationResult:
        lossy = policy.name == "speculative" and prompt == "bb"
        return result("4", SAME if lossy else VARIED, 1.0)

    script.make = make
    report = evaluated(session, [SUMS, CHAT], SpeculativeOnly(4))
    assert not report.ok
    assert report.policies[1].tasks[0].different == [1]
    assert report.policies[1].tasks[1].different == []


def test_policies_and_tasks_take_turns(session: Session, script: Script) -> None:
    evaluated(session, [SUMS, CHAT], SpeculativeOnly(4), Hybrid(4, 0.9, 2))
    there, back = ["ar", "speculative", "hybrid"], ["hybrid", "speculative", "ar"]
    assert script.asked == [
        (policy, prompt)
        for prompt, order in zip("aebfg", (there, back, there, back, there), strict=True)
        for policy in order
        for prompt in ["bb" if prompt == "b" else prompt]
    ]


def test_an_interrupt_keeps_what_every_policy_has(session: Session, script: Script) -> None:
    script.interrupt_at = 6
    report = evaluated(session, [SUMS, MORE, CHAT], SpeculativeOnly(4))
    assert report.interrupted
    assert [(task.task, task.done) for task in report.tasks] == [
        ("sums", 1),
        ("more", 1),
        ("chat", 0),
    ]
    shown: list[PolicyFigures] = report.policies
    assert [[task.task for task in figures.tasks] for figures in shown] == [["sums", "more"]] * 2
    assert [len(figures.replies) for figures in shown] == [2, 2]


def test_an_interrupt_before_the_first_item_is_passed_on(session: Session, script: Script) -> None:
    script.interrupt_at = 2
    with pytest.raises(KeyboardInterrupt):
        evaluated(session, [SUMS], SpeculativeOnly(4))


def test_an_empty_reply_has_no_speed_up(session: Session, script: Script) -> None:
    empty = result("", [], 1.0, iterations=1, accepted_lengths=[0], verified=[True])
    script.make = lambda path, policy, prompt: empty
    report = evaluated(session, [MORE], SpeculativeOnly(4))
    (task,) = report.policies[1].tasks
    assert (task.score, task.tokens_per_s, task.tokens_per_iteration) == (0.0, 0.0, 0.0)
    assert (task.speedup_over_ar, task.mean_accepted) == (None, 0.0)


def test_a_prompt_over_the_context_is_refused_before_any_step(
    session: Session, script: Script
) -> None:
    long = Task("long", False, (Item("a", "4"), Item("a" * session.states.context, "4")))
    with pytest.raises(UserError, match=r"task 'long', item 1: the prompt has \d+ tokens"):
        Evaluation(session, [], [SUMS, long])


def test_real_replies(tiny_ternary_bundle: Bundle) -> None:
    tasks = [Task("sums", False, (Item("the hat", "4"), Item("an inn", "6"))), CHAT]
    with Session(tiny_ternary_bundle, CpuEngine(tiny_ternary_bundle, threads=1)) as session:
        policies = [session.policy("speculative"), session.policy("hybrid", block=2)]
        report = evaluated(session, tasks, *policies, max_new_tokens=24)
    assert report.ok and not report.interrupted
    assert report.environment.engine == "cpu"
    for figures in report.policies:
        for task in figures.tasks:
            assert task.generated_tokens == sum(
                row.generated_tokens for row in figures.replies if row.task == task.task
            )
            assert task.tokens_per_s > 0
    assert report.policies[1].tasks[0].mean_confident is None
    assert report.policies[2].tasks[0].mean_confident is not None
