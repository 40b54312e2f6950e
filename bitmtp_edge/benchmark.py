"""What decoding costs here: rates of each policy, the steps they are made of, and Python's share.

Every prompt is decoded by each policy in turn, forwards and backwards by turns, so that what the
machine does meanwhile touches all of them alike: a machine that slows down steadily favours none.
Decoding is greedy, and the tokens of every lossless policy must be those of AR.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from .decode.generate import GenerationResult
from .decode.policies import AutoRegressive, Policy
from .decode.stopping import StopRules
from .engines.base import Engine, ReplayState, StepOutput, Window
from .errors import UserError
from .session import Session

WARM_UP_TOKENS = 8
PYTHON_TOKENS = 256
PYTHON_REPEATS = 5


class TimedEngine(Engine):
    """Another engine, and the seconds that each of its replays took."""

    def __init__(self, engine: Engine) -> None:
        self.inner = engine
        self.name = engine.name
        self.seconds: dict[ReplayState, list[float]] = {}

    @property
    def segment(self) -> int:
        return self.inner.segment

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        began = perf_counter()
        output = self.inner.replay(state, window)
        self.seconds.setdefault(state, []).append(perf_counter() - began)
        return output

    @property
    def threads(self) -> int | None:
        return self.inner.threads

    def promote(self, rows: Sequence[int], at: int) -> None:
        self.inner.promote(rows, at)

    def grow(self, segment: int, rows: int) -> None:
        self.inner.grow(segment, rows)

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class StepCost:
    """A replay state that decoding used: how often, and its median cost in ms."""

    role: str
    width: int
    outputs: int
    segment: int
    count: int
    median_ms: float


@dataclass(frozen=True)
class ReplyRow:
    """One reply. prompt and round count from 0; gamma is None for a policy without drafts.

    speedup_over_ar: AR's decode seconds a token over this reply's, same prompt and round; None
    without AR, or where either reply is empty.
    """

    policy: str
    gamma: int | None
    prompt: int
    round: int
    prompt_tokens: int
    generated_tokens: int
    prefill_s: float
    decode_s: float
    tokens_per_s: float
    tokens_per_iteration: float
    speedup_over_ar: float | None


@dataclass(frozen=True)
class PolicyReport:
    """Medians over every reply of one policy. gamma: drafts an iteration, of a block too. lossless:
    its tokens must be AR's.

    prefill_tokens_per_s counts the prompt's tokens. acceptance_rate: accepted drafts of all drafts,
    None without drafts. speedup_over_ar: median of the replies' own, of which there are
    ``speedup_pairs``; ``speedup_quartiles`` are the first and the third. All None, and no pairs,
    without AR. same_tokens_as_ar: None without AR; ``difference`` tells the first that differs.
    python_ms_per_step: what Python costs between two C steps, measured with an empty plan; None
    where the engine is not ``cpu``.
    """

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
    speedup_over_ar: float | None
    speedup_quartiles: tuple[float, float] | None
    speedup_pairs: int
    same_tokens_as_ar: bool | None
    difference: str | None
    python_ms_per_step: float | None


@dataclass(frozen=True)
class BenchReport:
    """``steps`` are those of all policies and of prefill; ``replies`` are in the order of policy,
    round and prompt."""

    bundle: str
    model: str
    engine: str
    threads: int | None
    prompts: int
    repeat: int
    max_new_tokens: int
    policies: list[PolicyReport]
    steps: list[StepCost]
    replies: list[ReplyRow]

    @property
    def ok(self) -> bool:
        """No lossless policy returned other tokens than AR."""
        return not any(p.lossless and p.same_tokens_as_ar is False for p in self.policies)


@dataclass
class _Samples:
    """Replies of one policy, in order of (round, prompt)."""

    policy: Policy
    replies: list[GenerationResult] = field(default_factory=list)

    @property
    def gamma(self) -> int | None:
        return self.policy.max_drafts or None

    def speedups(self, ar: _Samples | None) -> list[float | None]:
        """Of each reply, over AR's on the same prompt in the same round."""
        if ar is None:
            return [None] * len(self.replies)
        pairs = zip(self.replies, ar.replies, strict=True)
        return [
            ours.tokens_per_s / theirs.tokens_per_s
            if ours.tokens_per_s and theirs.tokens_per_s
            else None
            for ours, theirs in pairs
        ]


def read_prompts(path: str | Path) -> list[str]:
    """Prompts of a file: one a line, or in a ``.jsonl`` one object a line with "prompt".

    Blank lines are skipped. Raises UserError for a file that is unreadable, empty or malformed.
    """
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8 text (byte {error.start})") from None
    prompts = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        if source.suffix != ".jsonl":
            prompts.append(line.strip())
            continue
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            value = None
        prompt = value.get("prompt") if isinstance(value, dict) else None
        if not isinstance(prompt, str) or not prompt:
            raise UserError(
                f'{source}, line {number}: expected an object such as {{"prompt": "Hi"}}'
            )
        prompts.append(prompt)
    if not prompts:
        raise UserError(f"{source} holds no prompts: expected one a line")
    return prompts


def benchmark(
    session: Session,
    prompts: Sequence[str],
    policies: Sequence[Policy],
    *,
    repeat: int = 3,
    max_new_tokens: int = 128,
    advance: Callable[[], None] = lambda: None,
) -> BenchReport:
    """Decodes every prompt ``repeat`` times with each of ``policies``; ``advance`` is called after
    each reply.

    Raises UserError for a prompt that the context cannot hold.
    """
    timed = TimedEngine(session.engine)
    measured = Session(session.bundle, timed)
    prompt_ids = [session.prompt_ids(prompt) for prompt in prompts]
    samples = [_Samples(policy) for policy in policies]
    for policy in policies:  # plans are made, and weights read from disk, at first use
        _whole(measured.reply(measured.decoder(policy), prompt_ids[0], WARM_UP_TOKENS))
    timed.seconds.clear()
    for round_ in range(repeat):
        for number, ids in enumerate(prompt_ids):
            for sample in samples if (round_ + number) % 2 == 0 else reversed(samples):
                reply = measured.reply(measured.decoder(sample.policy), ids, max_new_tokens)
                sample.replies.append(_whole(reply))
                advance()
    ar = next((each for each in samples if isinstance(each.policy, AutoRegressive)), None)
    return BenchReport(
        bundle=str(session.bundle.path),
        model=session.bundle.model.name,
        engine=session.engine.name,
        threads=session.engine.threads,
        prompts=len(prompts),
        repeat=repeat,
        max_new_tokens=max_new_tokens,
        policies=[
            _policy_report(sample, ar, python_ms_per_step(session, sample.policy, prompt_ids[0]))
            for sample in samples
        ],
        steps=_step_costs(timed.seconds),
        replies=[row for sample in samples for row in _reply_rows(sample, ar, len(prompts))],
    )


def python_ms_per_step(session: Session, policy: Policy, prompt_ids: Sequence[int]) -> float | None:
    """Milliseconds of Python for each step of ``policy``: window, C call, outputs, promotion, text.

    The whole decoding loop runs on a CPU engine whose plans have no calls. None on other engines.
    """
    if session.engine.name != "cpu":
        return None
    from .engines.cpu import CpuEngine

    samples = []
    with Session(session.bundle, CpuEngine(session.bundle, threads=1, empty=True)) as empty:
        room = session.states.context - len(prompt_ids)
        for _ in range(PYTHON_REPEATS):
            # No step writes a token, so all are token 0, which may be a stop token.
            decoder = empty.decoder(policy)
            reply = _whole(empty.reply(decoder, prompt_ids, min(PYTHON_TOKENS, room), StopRules()))
            samples.append(1e3 * reply.decode_s / (reply.draft_steps + reply.verify_steps))
    return median(samples)


def _whole(reply: GenerationResult) -> GenerationResult:
    """``reply``; an interrupt that ended it ends the benchmark."""
    if reply.finish_reason == "interrupted":
        raise KeyboardInterrupt
    return reply


def _policy_report(sample: _Samples, ar: _Samples | None, python_ms: float | None) -> PolicyReport:
    replies = sample.replies
    drafted = sum(reply.drafted_tokens for reply in replies)
    speedups = [speedup for speedup in sample.speedups(ar) if speedup is not None]
    difference = None
    if ar is not None:
        pairs = zip(replies, ar.replies, strict=True)
        difference = next(filter(None, (_difference(a, b) for a, b in pairs)), None)
    return PolicyReport(
        policy=sample.policy.name,
        gamma=sample.gamma,
        settings=sample.policy.settings,
        lossless=sample.policy.lossless,
        replies=len(replies),
        generated_tokens=sum(reply.generated_tokens for reply in replies),
        prefill_tokens_per_s=_median(r.prompt_tokens / r.prefill_s for r in replies if r.prefill_s),
        decode_tokens_per_s=_median(reply.tokens_per_s for reply in replies),
        tokens_per_iteration=_median(reply.tokens_per_iteration for reply in replies),
        acceptance_rate=sum(sum(r.accepted_lengths) for r in replies) / drafted
        if drafted
        else None,
        speedup_over_ar=median(speedups) if speedups else None,
        speedup_quartiles=_quartiles(speedups) if speedups else None,
        speedup_pairs=len(speedups),
        same_tokens_as_ar=None if ar is None else difference is None,
        difference=difference,
        python_ms_per_step=python_ms,
    )


def _reply_rows(sample: _Samples, ar: _Samples | None, prompts: int) -> list[ReplyRow]:
    return [
        ReplyRow(
            policy=sample.policy.name,
            gamma=sample.gamma,
            prompt=index % prompts,
            round=index // prompts,
            prompt_tokens=reply.prompt_tokens,
            generated_tokens=reply.generated_tokens,
            prefill_s=reply.prefill_s,
            decode_s=reply.decode_s,
            tokens_per_s=reply.tokens_per_s,
            tokens_per_iteration=reply.tokens_per_iteration,
            speedup_over_ar=speedup,
        )
        for index, (reply, speedup) in enumerate(
            zip(sample.replies, sample.speedups(ar), strict=True)
        )
    ]


def _difference(reply: GenerationResult, ar: GenerationResult) -> str | None:
    """Where a reply leaves AR's, or None."""
    if reply.token_ids == ar.token_ids:
        return None
    pairs = zip(reply.token_ids, ar.token_ids, strict=False)
    shorter = min(len(reply.token_ids), len(ar.token_ids))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    here = (
        f"token {ids[at]}" if at < len(ids) else "end" for ids in (reply.token_ids, ar.token_ids)
    )
    return "at token {} of a reply: {}, AR has {}".format(at, *here)


def _step_costs(seconds: dict[ReplayState, list[float]]) -> list[StepCost]:
    states = sorted(seconds, key=lambda s: (s.role, s.width, s.outputs, s.segment))
    return [
        StepCost(
            state.role,
            state.width,
            state.outputs,
            state.segment,
            len(seconds[state]),
            1e3 * median(seconds[state]),
        )
        for state in states
    ]


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third; of one value, itself."""
    if len(values) == 1:
        return values[0], values[0]
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, third


def _median(values: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    found = list(values)
    return median(found) if found else 0.0
