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
from .bench_tables import print_report
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

if TYPE_CHECKING:
    from ..decode.policies import Policy

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

    texts = read_prompts(prompt_file)
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
        prompts = [session.prompt_ids(text) for text in texts]
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
        print_report(report)
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
