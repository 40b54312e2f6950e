"""What decoding costs here: rates of each policy, the steps they are made of, and Python's share.

Every prompt is decoded by each policy in turn, forwards and backwards by turns, so that what the
machine does meanwhile touches all of them alike: a machine that slows down steadily favours none.
Decoding is greedy, and the tokens of every lossless policy must be those of AR.

A policy's speed-up is also predicted, from the steps it took and the median cost of each kind:

    tokens an iteration / (draft cost + verified share * verify cost)         costs in AR steps

so that a machine at fault can be told from drafts at fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from pathlib import Path
from statistics import median, quantiles
from typing import get_args

from .benchmark_report import (
    NOISY,
    BenchReport,
    PolicyReport,
    ReplyRow,
    RuntimeReport,
    StepCost,
)
from .benchmark_samples import Costs, Samples, Timed
from .decode.forced import ForcedOutcomes
from .decode.generate import GenerationResult
from .decode.policies import AutoRegressive, Policy
from .decode.stopping import StopRules
from .engines.base import Role
from .engines.runtimes import FULL, GENERIC
from .errors import UserError
from .session import Session

WARM_UP_TOKENS = 32
PYTHON_TOKENS = 256
PYTHON_REPEATS = 5


def read_prompts(path: str | Path) -> list[str]:
    """Prompts of a file: one a line, or in a ``.jsonl`` one object a line with "prompt".

    Blank lines are skipped. Raises UserError for a file that is unreadable, empty or malformed.
    """
    return [prompt for _, prompt in numbered_prompts(path)]


def numbered_prompts(path: str | Path) -> list[tuple[int, str]]:
    """:func:`read_prompts`, each behind the number of its line."""
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
            prompts.append((number, line.strip()))
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
        prompts.append((number, prompt))
    if not prompts:
        raise UserError(f"{source} holds no prompts: expected one a line")
    return prompts


def benchmark(
    session: Session,
    prompts: Sequence[Sequence[int]],
    policies: Sequence[Policy],
    *,
    repeat: int = 3,
    max_new_tokens: int = 128,
    runtimes: Mapping[str, Session] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> BenchReport:
    """Decodes every prompt, the ids of one, ``repeat`` times with each of ``policies``; ``advance``
    is called after each reply.

    runtimes: sessions to measure in place of ``session``, by name; all are compared with AR of the
    first. Where outcomes are dictated that leave other tokens than the model's, replies end at
    ``max_new_tokens`` alone.

    Raises UserError for a prompt that the context cannot hold.
    """
    measured = [Timed(*each) for each in runtimes.items()] if runtimes else [Timed(None, session)]
    samples = [Samples(timed, policy) for timed in measured for policy in policies]
    for sample in samples:  # plans are made, and weights read from disk, at first use
        _reply(sample, prompts[0], WARM_UP_TOKENS)
    for timed in measured:
        timed.engine.seconds.clear()
    forced = [policy for policy in policies if isinstance(policy, ForcedOutcomes)]
    rules = session.stop_rules() if all(policy.lossless for policy in forced) else StopRules()
    for round_ in range(repeat):
        for number, ids in enumerate(prompts):
            for sample in samples if (round_ + number) % 2 == 0 else reversed(samples):
                replayed = sample.timed.engine.replayed
                replayed.clear()
                sample.take(_reply(sample, ids, max_new_tokens, rules), replayed)
                advance()
    ar = next((each for each in samples if isinstance(each.policy, AutoRegressive)), None)
    costs = {timed.runtime: Costs(timed, ar) for timed in measured}
    steps = [cost for timed in measured for cost in _step_costs(timed)]
    spread = _spread(steps)
    return BenchReport(
        synthetic=bool(forced),
        bundle=str(session.bundle.path),
        model=session.bundle.model.name,
        engine=session.engine.name,
        threads=session.engine.threads,
        prompts=len(prompts),
        repeat=repeat,
        max_new_tokens=max_new_tokens,
        step_spread=spread,
        noisy=spread > NOISY,
        energy=next(
            (
                f"{reply.energy['source']}: {reply.energy['total_is']}"
                for sample in samples
                for reply in sample.replies
                if reply.energy is not None
            ),
            None,
        ),
        policies=[
            _policy_report(
                sample,
                samples,
                ar,
                costs[sample.timed.runtime],
                python_ms_per_step(session, sample.policy, prompts[0]),
                noisy=spread > NOISY,
            )
            for sample in samples
        ],
        steps=steps,
        runtimes=[
            RuntimeReport(timed.runtime, timed.engine.memory()["kv"])
            for timed in measured
            if timed.runtime is not None
        ],
        replies=[
            row
            for sample in samples
            for row in _reply_rows(sample, ar, costs[sample.timed.runtime], len(prompts))
        ],
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
            decoder = empty.decoder(deepcopy(policy))  # one that learns learns nothing here
            reply = _whole(empty.reply(decoder, prompt_ids, min(PYTHON_TOKENS, room), StopRules()))
            samples.append(1e3 * reply.decode_s / (reply.draft_steps + reply.verify_steps))
    return median(samples)


def _reply(
    sample: Samples, ids: Sequence[int], max_new_tokens: int, rules: StopRules | None = None
) -> GenerationResult:
    session = sample.timed.session
    return _whole(session.reply(session.decoder(sample.policy), ids, max_new_tokens, rules))


def _whole(reply: GenerationResult) -> GenerationResult:
    """``reply``; an interrupt that ended it ends the benchmark."""
    if reply.finish_reason == "interrupted":
        raise KeyboardInterrupt
    return reply


def _policy_report(
    sample: Samples,
    samples: Sequence[Samples],
    ar: Samples | None,
    costs: Costs,
    python_ms: float | None,
    noisy: bool,
) -> PolicyReport:
    replies = sample.replies
    drafted = sum(reply.drafted_tokens for reply in replies)
    iterations = sum(reply.iterations for reply in replies)
    pairs = [
        (speedup, predicted)
        for speedup, reply, steps in zip(sample.speedups(ar), replies, sample.steps, strict=True)
        if speedup and (predicted := costs.speedup(reply, steps))
    ]
    speedups = [speedup for speedup, _ in pairs]
    over_ar = median(speedups) if speedups else None
    predicted_speedup = median(predicted for _, predicted in pairs) if pairs else None
    draft, verify = (costs.of(chain(*sample.steps), role) for role in get_args(Role))
    verify_steps = sum(reply.verify_steps for reply in replies)
    same = {each.timed.runtime: each for each in samples if each.policy is sample.policy}
    over_generic = [each for each in sample.speedups(same.get(GENERIC)) if each]
    full = same.get(FULL)
    measured = [reply for reply in replies if reply.joules_per_token is not None]
    joules = [reply.joules_per_token or 0.0 for reply in measured]
    difference = None
    if ar is not None:
        both = zip(replies, ar.replies, strict=True)
        difference = next(filter(None, (_difference(a, b) for a, b in both)), None)
    return PolicyReport(
        runtime=sample.timed.runtime,
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
        verified_share=_mean(verified for reply in replies for verified in reply.verified) or 0.0,
        mean_confident=_mean(h for reply in replies for h in reply.confident_lengths),
        mean_accepted=_mean(a for reply in replies for a in reply.accepted_lengths)
        if drafted
        else None,
        draft_cost=None if draft is None else draft / max(iterations, 1),
        verify_cost=verify / verify_steps if verify and verify_steps else None,
        predicted_speedup=predicted_speedup,
        measured_over_predicted=None
        if noisy or not over_ar or not predicted_speedup
        else over_ar / predicted_speedup,
        speedup_over_ar=over_ar,
        speedup_quartiles=_quartiles(speedups) if speedups else None,
        speedup_pairs=len(speedups),
        same_tokens_as_ar=None if ar is None else difference is None,
        difference=difference,
        speedup_over_generic=median(over_generic) if over_generic else None,
        same_tokens_as_full=None
        if full is None or full is sample
        else all(_difference(a, b) is None for a, b in zip(replies, full.replies, strict=True)),
        joules_per_token=median(joules) if joules else None,
        joules_quartiles=_quartiles(joules) if joules else None,
        watts=median(reply.watts or 0.0 for reply in measured) if measured else None,
        measured_replies=len(measured),
        energy_reason=next((r.no_joules for r in replies if r.no_joules is not None), None),
        python_ms_per_step=python_ms,
    )


def _reply_rows(sample: Samples, ar: Samples | None, costs: Costs, prompts: int) -> list[ReplyRow]:
    return [
        ReplyRow(
            runtime=sample.timed.runtime,
            policy=sample.policy.name,
            gamma=sample.gamma,
            block=sample.policy.settings.get("block"),
            min_prefix=sample.policy.settings.get("min_prefix"),
            trace=sample.policy.settings.get("trace"),
            prompt=index % prompts,
            round=index // prompts,
            prompt_tokens=reply.prompt_tokens,
            generated_tokens=reply.generated_tokens,
            prefill_s=reply.prefill_s,
            decode_s=reply.decode_s,
            tokens_per_s=reply.tokens_per_s,
            tokens_per_iteration=reply.tokens_per_iteration,
            speedup_over_ar=speedup,
            predicted_speedup=costs.speedup(reply, steps),
            joules_per_token=reply.joules_per_token,
            watts=reply.watts,
        )
        for index, (reply, speedup, steps) in enumerate(
            zip(sample.replies, sample.speedups(ar), sample.steps, strict=True)
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


def _step_costs(timed: Timed) -> list[StepCost]:
    seconds = timed.engine.seconds
    states = sorted(seconds, key=lambda s: (s.role, s.width, s.outputs, s.segment))
    return [
        StepCost(
            state.role,
            state.width,
            state.outputs,
            state.segment,
            len(seconds[state]),
            1e3 * median(seconds[state]),
            _quartiles([1e3 * each for each in seconds[state]]),
            timed.runtime,
        )
        for state in states
    ]


def _spread(steps: Sequence[StepCost]) -> float:
    """Of a step's times, by how often it ran: the third quartile over the first."""
    count = sum(step.count for step in steps)
    shares = ((step.quartiles_ms, step.count / count) for step in steps)
    return sum(share * third / first for (first, third), share in shares)


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third; of one value, itself."""
    if len(values) == 1:
        return values[0], values[0]
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, third


def _mean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    found = list(values)
    return sum(found) / len(found) if found else None


def _median(values: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    found = list(values)
    return median(found) if found else 0.0
