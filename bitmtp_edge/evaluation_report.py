"""What an evaluation reports; ``dataclasses.asdict`` of it is what ``eval --json`` writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .environment import Environment


@dataclass(frozen=True)
class BundleFacts:
    """sha256: of bundle.json, which holds those of all files."""

    path: str
    model: str
    sha256: str


@dataclass(frozen=True)
class TaskFacts:
    """items: of the task files; done: those that every policy has replied to."""

    task: str
    scored: bool
    apart: bool
    items: int
    done: int


@dataclass(frozen=True)
class TaskFigures:
    """One policy on one task.

    score: right final answers, in percent; None where the task has no answers. Tokens, iterations
    and seconds are sums over the replies; tokens_per_iteration, verified_share (of the iterations)
    and tokens_per_s (after prefill) are quotients of sums, 0 where the divisor is. mean_confident,
    mean_accepted: h and committed drafts of an iteration; None where the policy has no h, or no
    drafts. speedup_*: over the tokens_per_s of AR on the same task, of this bundle (None for the
    baseline) and of the baseline; None where either rate is 0. distinct_4grams: mean over the
    replies; repetitive: items whose reply is below 0.6; tokens_per_iteration_distinct: over the
    others, None if there are none. same_as_ar: share of replies with AR's token ids; different: the
    items of the others; both None for the baseline. cut: replies that --max-new-tokens or the
    context ended.
    """

    task: str
    score: float | None
    generated_tokens: int
    iterations: int
    decode_s: float
    tokens_per_iteration: float
    verified_share: float
    mean_confident: float | None
    mean_accepted: float | None
    tokens_per_s: float
    speedup_over_ar: float | None
    speedup_over_baseline: float | None
    distinct_4grams: float
    repetitive: list[int]
    tokens_per_iteration_distinct: float | None
    same_as_ar: float | None
    different: list[int] | None
    cut: int


@dataclass(frozen=True)
class Average:
    """Unweighted means over the tasks that are scored and not apart.

    The speed-ups are quotients of the mean tokens_per_s. None where a task has None.
    """

    tasks: int
    score: float
    tokens_per_iteration: float
    verified_share: float
    mean_confident: float | None
    mean_accepted: float | None
    tokens_per_s: float
    speedup_over_ar: float | None
    speedup_over_baseline: float | None
    distinct_4grams: float
    tokens_per_iteration_distinct: float | None
    same_as_ar: float | None


@dataclass(frozen=True)
class ItemRow:
    """One reply. answer, right: None where the task is not scored; same_as_ar: None for the
    baseline. Items count from 0, in each task."""

    task: str
    item: int
    text: str
    answer: str | None
    right: bool | None
    same_as_ar: bool | None
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int
    iterations: int
    verified: int
    prefill_s: float
    decode_s: float
    distinct_4grams: float


@dataclass(frozen=True)
class PolicyFigures:
    """One policy. lossless: its tokens must be those of AR. average: None without a task that is
    scored and not apart."""

    baseline: bool
    policy: str
    lossless: bool
    settings: dict[str, Any]
    tasks: list[TaskFigures]
    average: Average | None
    replies: list[ItemRow]

    @property
    def different(self) -> int:
        """Replies, of all tasks, that are not AR's."""
        return sum(len(task.different or ()) for task in self.tasks)


@dataclass(frozen=True)
class EvalReport:
    """policies: the baseline's AR first where there is one, then AR, then as asked for."""

    interrupted: bool
    bundle: BundleFacts
    baseline: BundleFacts | None
    environment: Environment
    max_new_tokens: int
    tasks: list[TaskFacts]
    policies: list[PolicyFigures]

    @property
    def ok(self) -> bool:
        """No lossless policy gave other tokens than AR."""
        return not any(each.lossless and each.different for each in self.policies)
