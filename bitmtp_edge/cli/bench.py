"""Measure decoding on this machine, prompt by prompt and step by step."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ..decode import POLICIES, check_used
from ..errors import UserError
from ..progress import Progress
from .options import (
    Count,
    EngineChoice,
    NumberOrAuto,
    block_option,
    bundle_argument,
    choices,
    engine_options,
    gamma_option,
    max_new_tokens_option,
    threshold_options,
)
from .reply import describe_choice

if TYPE_CHECKING:
    from ..benchmark_report import BenchReport, PolicyReport
    from ..decode.policies import Policy

DIFFERS = 1
FEW_STEPS = 20  # a median of fewer tells little


@click.command(name="bench", help=__doc__)
@bundle_argument
@click.option(
    "--prompts",
    "prompt_file",
    metavar="FILE",
    required=True,
    type=click.Path(),
    help='A prompt a line; in a .jsonl, objects with "prompt".',
)
@click.option(
    "--policy",
    "names",
    multiple=True,
    type=click.Choice(POLICIES),
    help="Policy to measure; may be repeated [default: all that the bundle has].",
)
@gamma_option("gammas", multiple=True)
@block_option("blocks", multiple=True)
@threshold_options
@click.option(
    "--force-reject",
    is_flag=True,
    help="Reject every draft: what drafting costs where nothing comes of it. The text is AR's.",
)
@click.option(
    "--accept-trace",
    "trace_file",
    metavar="FILE",
    type=click.Path(),
    help='What comes of each iteration, repeated: a line "h a verified", or a JSON object. The '
    "text is none.",
)
@click.option("--repeat", type=Count, default=3, show_default=True, metavar="N", help="Rounds.")
@max_new_tokens_option(128)
@engine_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    ctx: click.Context,
    bundle: str,
    prompt_file: str,
    names: tuple[str, ...],
    gammas: tuple[int, ...],
    blocks: tuple[NumberOrAuto, ...],
    tau: float | None,
    min_prefix: NumberOrAuto | None,
    force_reject: bool,
    trace_file: str | None,
    repeat: int,
    max_new_tokens: int,
    engine: EngineChoice,
    as_json: bool,
) -> None:
    from ..benchmark import benchmark, read_prompts

    prompts = read_prompts(prompt_file)
    forced = _forcing(force_reject, trace_file, blocks)
    check_used(names or POLICIES, gamma=gammas, block=blocks, tau=tau, min_prefix=min_prefix)
    with engine.open(bundle) as session:
        policies = [
            forced(choice.of(session))
            for name in dict.fromkeys(names or session.policies)
            for choice in choices(name, gammas, blocks, tau, min_prefix)
        ]
        if (force_reject or trace_file) and not any(policy.max_drafts for policy in policies):
            raise UserError(
                "--force-reject and --accept-trace dictate what comes of drafts, and no policy "
                "here makes any: leave them out, or add a policy that drafts"
            )
        with Progress(repeat * len(prompts) * len(policies), "bench", "replies") as progress:
            report = benchmark(
                session,
                prompts,
                policies,
                repeat=repeat,
                max_new_tokens=max_new_tokens,
                advance=progress.advance,
            )
    if as_json:
        click.echo(json.dumps({"ok": report.ok, **asdict(report)}, indent=1))
    else:
        _print(report)
    if not report.ok:
        ctx.exit(DIFFERS)


def _forcing(
    reject: bool, trace_file: str | None, blocks: Sequence[NumberOrAuto]
) -> Callable[[Policy], Policy]:
    """What makes a policy's outcomes the dictated ones, if any are."""
    from ..accept_trace import dictated, read_accept_trace
    from ..decode.forced import force_reject

    if not reject and trace_file is None:
        return lambda policy: policy
    if reject and trace_file is not None:
        raise UserError("--force-reject and --accept-trace dictate different things: give one")
    if "auto" in blocks:
        raise UserError(
            "--block auto chooses by what comes of drafts, which --force-reject and "
            "--accept-trace dictate: give a number"
        )
    if trace_file is None:
        return lambda policy: force_reject(policy) if policy.max_drafts else policy
    outcomes = read_accept_trace(trace_file)
    return lambda policy: dictated(policy, outcomes, trace_file)


def _print(report: BenchReport) -> None:
    if report.synthetic:
        click.echo("synthetic acceptance: what comes of drafts is dictated, not the model's")
    threads = "" if report.threads is None else f", {report.threads} threads"
    click.echo(
        f"{report.model}, engine {report.engine}{threads}: {report.prompts} prompts, "
        f"{report.repeat} rounds, up to {report.max_new_tokens} tokens; medians"
    )
    click.echo()
    heading = ("policy", "prefill tok/s", "decode tok/s", "tokens/iter.", "accepted", "over AR")
    _table([heading, *(_policy_row(policy) for policy in report.policies)])
    _print_pairs(report)
    _print_iterations(report)
    _print_choices(report)
    click.echo()
    often = [step for step in report.steps if step.count >= FEW_STEPS]
    if often:
        steps = [
            (
                s.role,
                str(s.width),
                str(s.outputs),
                str(s.segment),
                f"{s.median_ms:.2f}",
                str(s.count),
            )
            for s in often
        ]
        _table([("step", "width", "outputs", "segment", "ms", "count"), *steps])
    if rare := len(report.steps) - len(often):
        click.echo(f"left out: {rare} kinds of step run fewer than {FEW_STEPS} times (see --json)")
    click.echo()
    for policy in report.policies:
        if policy.python_ms_per_step is not None:
            click.echo(
                f"{_label(policy)}: Python costs {policy.python_ms_per_step:.3f} ms a step, "
                "measured with an empty plan"
            )
    for policy in report.policies:
        if policy.policy == "ar" or policy.same_tokens_as_ar is None:
            continue
        if report.synthetic and not policy.lossless:
            continue  # no text of the model's
        told = f"DIFFER from AR's: {policy.difference}"
        if not policy.lossless:
            told = f"may differ from AR's, and do, {policy.difference}"
        if policy.same_tokens_as_ar:
            told = f"are AR's, token for token ({policy.replies} replies)"
        click.echo(f"{_label(policy)}: its tokens {told}")


def _print_pairs(report: BenchReport) -> None:
    """What the last column is, and how far its pairs spread."""
    compared = [p for p in report.policies if p.policy != "ar" and p.speedup_quartiles is not None]
    if compared:
        click.echo()
    for policy in compared:
        assert policy.speedup_quartiles is not None
        first, third = policy.speedup_quartiles
        click.echo(
            f"{_label(policy)}, over AR: median of {policy.speedup_pairs} pairs, "
            f"quartiles {first:.2f} .. {third:.2f}"
        )
    if compared:
        click.echo(
            "(a pair: AR's decode seconds a token over the policy's, same prompt, same round; the "
            "rates above\nare medians of all prompts, whose quotient may be another number)"
        )


def _print_iterations(report: BenchReport) -> None:
    """What an iteration gives and costs, and the speed-up that follows."""
    drafting = [policy for policy in report.policies if policy.acceptance_rate is not None]
    if not drafting:
        return
    click.echo()
    heading = (
        "an iteration",
        "h",
        "a",
        "verified",
        "draft cost",
        "verify cost",
        "predicted",
        "ratio",
    )
    rows = [
        (
            _label(policy),
            _number(policy.mean_confident),
            _number(policy.mean_accepted),
            f"{policy.verified_share:.1%}",
            _number(policy.draft_cost),
            _number(policy.verify_cost),
            _number(policy.predicted_speedup, "x"),
            _number(policy.measured_over_predicted),
        )
        for policy in drafting
    ]
    _table([heading, *rows])
    click.echo(
        "(h: confident drafts, a: accepted; costs in AR steps; predicted: tokens an iteration / "
        "(draft cost +\nverified share x verify cost); ratio: over AR, measured / predicted)"
    )
    if report.noisy:
        click.echo(
            "noisy run, so no ratio: of one step's times the third quartile is "
            f"{report.step_spread:.1f} times the first; was something\nelse busy here?"
        )


def _print_choices(report: BenchReport) -> None:
    """What block auto chose; also where that was never to draft."""
    for policy in report.policies:
        for choice in policy.settings.get("chosen", ()):
            told = describe_choice(choice)
            click.echo(f"{_label(policy)}: {told}, {choice['iterations']} iterations")


def _number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def _label(report: PolicyReport) -> str:
    settings = ("gamma", "block", "min_prefix")
    given = [(name, report.settings.get(name)) for name in settings]
    named = [f"{name.replace('_', '-')} {value}" for name, value in given if value is not None]
    return ", ".join([report.policy, *named])


def _policy_row(report: PolicyReport) -> tuple[str, ...]:
    accepted, speedup = report.acceptance_rate, report.speedup_over_ar
    return (
        _label(report),
        f"{report.prefill_tokens_per_s:.1f}",
        f"{report.decode_tokens_per_s:.1f}",
        f"{report.tokens_per_iteration:.2f}",
        "-" if accepted is None else f"{accepted:.1%}",
        "-" if speedup is None else f"{speedup:.2f}x",
    )


def _table(rows: list[tuple[str, ...]]) -> None:
    """First column to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        click.echo("  ".join([first.ljust(widths[0]), *cells]))
