"""What a benchmark reports; ``dataclasses.asdict`` of it is what ``bench --json`` writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NOISY = 1.3  # third quartile of a step's times over the first: above, medians say little


@dataclass(frozen=True)
class StepCost:
    """A replay state that decoding used: how often, and what it took in ms: the median, the first
    and the third quartile. runtime: None where none are compared."""

    role: str
    width: int
    outputs: int
    segment: int
    count: int
    median_ms: float
    quartiles_ms: tuple[float, float]
    runtime: str | None = None


@dataclass(frozen=True)
class ReplyRow:
    """One reply. prompt and round count from 0. runtime: None where none are compared. gamma,
    block, min_prefix: settings of the policy, None for one that has no such setting. trace: the one
    that dictated what came of drafts, None where there was none.

    speedup_over_ar: AR's decode seconds a token over this reply's, same prompt and round; None
    without AR, or where either reply is empty. predicted_speedup: by its steps; None without AR.
    joules_per_token, watts: of decoding; None where the meter gave no figure.
    """

    runtime: str | None
    policy: str
    gamma: int | None
    block: int | str | None
    min_prefix: int | str | None
    trace: str | None
    prompt: int
    round: int
    prompt_tokens: int
    generated_tokens: int
    prefill_s: float
    decode_s: float
    tokens_per_s: float
    tokens_per_iteration: float
    speedup_over_ar: float | None
    predicted_speedup: float | None
    joules_per_token: float | None
    watts: float | None


@dataclass(frozen=True)
class PolicyReport:
    """Medians over every reply of one policy. runtime: None where none are compared. gamma: drafts
    an iteration, of a block too. lossless: its tokens must be AR's.

    prefill_tokens_per_s counts the prompt's tokens. acceptance_rate: accepted drafts of all drafts,
    None without drafts. verified_share: iterations that a verify step decided. mean_confident,
    mean_accepted: h and a of an iteration; None without a confidence prefix, without drafts.
    draft_cost, verify_cost: of an iteration's draft steps, and of one verify step, in AR steps by
    the medians of their kinds; None without AR. predicted_speedup: median of the replies' own.
    speedup_over_ar: likewise, of the ``speedup_pairs`` replies that have both; the first and third
    are ``speedup_quartiles``. measured_over_predicted: the quotient of these medians; None too
    where the run was noisy. All None, and no pairs, without AR. same_tokens_as_ar: None without AR;
    ``difference`` tells the first that differs.
    speedup_over_generic: median over the replies of the same policy on runtime generic, in pairs
    as with AR; None where that was not measured. same_tokens_as_full: every reply is as on runtime
    full; None of that one, and where it was not measured.
    joules_per_token, joules_quartiles, watts: of decoding, medians and first and third quartile of
    the ``measured_replies`` of which the meter gave a figure; None where there are none, and
    ``energy_reason`` says why some have none.
    python_ms_per_step: what Python costs between two C steps, measured with an empty plan; None
    where the engine is not ``cpu``.
    """

    runtime: str | None
    policy: str
    gamma: int | None
    settings: dict[str, Any]
    lossless: bool
    replies: int
    generated_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    tokens_per_iteration: float
    acceptance_rate: float | None
    verified_share: float
    mean_confident: float | None
    mean_accepted: float | None
    draft_cost: float | None
    verify_cost: float | None
    predicted_speedup: float | None
    measured_over_predicted: float | None
    speedup_over_ar: float | None
    speedup_quartiles: tuple[float, float] | None
    speedup_pairs: int
    same_tokens_as_ar: bool | None
    difference: str | None
    speedup_over_generic: float | None
    same_tokens_as_full: bool | None
    joules_per_token: float | None
    joules_quartiles: tuple[float, float] | None
    watts: float | None
    measured_replies: int
    energy_reason: str | None
    python_ms_per_step: float | None


@dataclass(frozen=True)
class RuntimeReport:
    """kv_bytes: of all KV buffers that the runtime has at the end."""

    runtime: str
    kv_bytes: int


@dataclass(frozen=True)
class BenchReport:
    """``steps`` are those of all policies and of prefill; ``replies`` are in the order of runtime,
    policy, round and prompt. runtimes: those that are compared, if any. synthetic: what came of
    drafts was dictated, so texts and speed-ups say nothing of the model. step_spread: a step's
    third quartile over its first, the mean of all steps run; noisy: it is above :data:`NOISY`.
    energy: the power source that measured, and what its total is; None without one.
    """

    synthetic: bool
    bundle: str
    model: str
    engine: str
    threads: int | None
    prompts: int
    repeat: int
    max_new_tokens: int
    step_spread: float
    noisy: bool
    energy: str | None
    policies: list[PolicyReport]
    steps: list[StepCost]
    runtimes: list[RuntimeReport]
    replies: list[ReplyRow]

    @property
    def ok(self) -> bool:
        """No lossless policy returned other tokens than AR, and no runtime others than the full
        one."""
        return not any(
            p.same_tokens_as_full is False or (p.lossless and p.same_tokens_as_ar is False)
            for p in self.policies
        )
