"""Measure decoding on this machine, prompt by prompt and step by step."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ..progress import Progress
from .options import (
    POLICY_NAMES,
    Count,
    EngineChoice,
    bundle_argument,
    engine_options,
    gamma_option,
    max_new_tokens_option,
)

if TYPE_CHECKING:
    from ..benchmark import BenchReport, PolicyReport

DIFFERS = 1


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
    type=click.Choice(POLICY_NAMES),
    default=POLICY_NAMES,
    help="Policy to measure; may be repeated [default: all].",
)
@gamma_option
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
    gamma: int | None,
    repeat: int,
    max_new_tokens: int,
    engine: EngineChoice,
    as_json: bool,
) -> None:
    from ..benchmark import benchmark, read_prompts

    prompts = read_prompts(prompt_file)
    with engine.open(bundle) as session:
        policies = [session.policy(name, gamma) for name in dict.fromkeys(names)]
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


def _print(report: BenchReport) -> None:
    threads = "" if report.threads is None else f", {report.threads} threads"
    click.echo(
        f"{report.model}, engine {report.engine}{threads}: {report.prompts} prompts, "
        f"{report.repeat} rounds, up to {report.max_new_tokens} tokens; medians"
    )
    click.echo()
    heading = ("policy", "prefill tok/s", "decode tok/s", "tokens/iter.", "accepted", "over AR")
    _table([heading, *(_policy_row(policy) for policy in report.policies)])
    click.echo()
    steps = [
        (
            s.role,
            str(s.width),
            str(s.outputs),
            str(s.segment),
            f"{s.median_ms:.2f}",
            str(s.count),
        )
        for s in report.steps
    ]
    _table([("step", "width", "outputs", "segment", "ms", "count"), *steps])
    click.echo()
    for policy in report.policies:
        if policy.python_ms_per_step is not None:
            click.echo(
                f"{policy.policy}: Python costs {policy.python_ms_per_step:.3f} ms a step, "
                "measured with an empty plan"
            )
    for policy in report.policies:
        if policy.policy == "ar" or policy.same_tokens_as_ar is None:
            continue
        told = f"DIFFER from AR's: {policy.difference}"
        if policy.same_tokens_as_ar:
            told = f"are AR's, token for token ({policy.replies} replies)"
        click.echo(f"{policy.policy}: its tokens {told}")


def _policy_row(report: PolicyReport) -> tuple[str, ...]:
    gamma = report.settings.get("gamma")
    accepted, speedup = report.acceptance_rate, report.speedup_over_ar
    return (
        report.policy if gamma is None else f"{report.policy}, gamma {gamma}",
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
