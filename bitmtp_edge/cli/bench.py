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
from .bench_runtimes import opened, runtime_option
from .bench_synthetic import bench_synthetic, print_synthetic
from .bench_tables import print_report
from .options import (
    Count,
    EngineChoice,
    NumberOrAuto,
    block_option,
    check_objective,
    choices,
    energy_option,
    engine_options,
    gamma_option,
    max_new_tokens_option,
    objective_option,
    policies_option,
    prompts_option,
    threshold_options,
)

if TYPE_CHECKING:
    from ..benchmark_report import BenchReport
    from ..decode.adaptive import Objective
    from ..decode.policies import Policy
    from ..session import Session

DIFFERS = 1
# What --synthetic measures unless told otherwise.
SYNTHETIC_POLICIES = ("ar", "confidence", "hybrid", "nested")
SYNTHETIC_GAMMAS: tuple[int, ...] = (4,)
SYNTHETIC_BLOCKS: tuple[NumberOrAuto, ...] = (4, 8)


@click.command(name="bench", help=__doc__)
@click.argument("bundle", type=click.Path(), required=False)
@prompts_option()
@click.option(
    "--synthetic",
    "shape",
    metavar="SHAPE",
    help="In place of BUNDLE and --prompts: random weights at the sizes of a published model "
    "(bitnet-2b, bonsai-1.7b, bonsai-4b, llama-2-7b), random prompts, and drafts that come out as "
    "in the papers.",
)
@policies_option("measure")
@gamma_option("gammas", multiple=True)
@block_option("blocks", multiple=True)
@threshold_options
@objective_option
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
@runtime_option
@click.option("--repeat", type=Count, default=3, show_default=True, metavar="N", help="Rounds.")
@max_new_tokens_option(128)
@engine_options
@energy_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    ctx: click.Context,
    bundle: str | None,
    prompt_file: str | None,
    shape: str | None,
    names: tuple[str, ...],
    gammas: tuple[int, ...],
    blocks: tuple[NumberOrAuto, ...],
    tau: float | None,
    min_prefix: NumberOrAuto | None,
    objective: Objective,
    force_reject: bool,
    trace_file: str | None,
    runtimes: tuple[str, ...],
    repeat: int,
    max_new_tokens: int,
    engine: EngineChoice,
    energy: str,
    as_json: bool,
) -> None:
    forced = _forcing(force_reject, trace_file, blocks, shape is not None)
    check_used(names or POLICIES, gamma=gammas, block=blocks, tau=tau, min_prefix=min_prefix)
    check_objective(objective, blocks, min_prefix, energy)
    if runtimes and "auto" in blocks:
        raise UserError(
            "--block auto chooses by what steps take, which --runtime changes: give a number"
        )

    def policies_of(session: Session) -> list[Policy]:
        asked, our_gammas, our_blocks = names or session.policies, gammas, blocks
        if shape is not None:
            asked = names or tuple(name for name in session.policies if name in SYNTHETIC_POLICIES)
            our_gammas, our_blocks = gammas or SYNTHETIC_GAMMAS, blocks or SYNTHETIC_BLOCKS
        found = [
            policy
            for name in dict.fromkeys(asked)
            for choice in choices(name, our_gammas, our_blocks, tau, min_prefix, objective)
            for policy in forced(choice.of(session))
        ]
        if (force_reject or trace_file) and not any(policy.max_drafts for policy in found):
            raise UserError(
                "--force-reject and --accept-trace dictate what comes of drafts, and no policy "
                "here makes any: leave them out, or add a policy that drafts"
            )
        return found

    if shape is not None:
        if bundle is not None or prompt_file is not None:
            raise UserError("--synthetic makes its bundle and its prompts: give neither")
        synthetic = bench_synthetic(
            shape, engine, energy, policies_of, runtimes, repeat, max_new_tokens
        )
        report = synthetic.bench
        told = {"synthetic": True, **asdict(synthetic)}
    else:
        report = _bench(
            bundle, prompt_file, engine, energy, policies_of, runtimes, repeat, max_new_tokens
        )
        told = asdict(report)
    if as_json:
        click.echo(json.dumps({"ok": report.ok, **told}, indent=1))
    elif shape is not None:
        print_synthetic(synthetic)
    else:
        print_report(report)
    if not report.ok:
        ctx.exit(DIFFERS)


def _bench(
    bundle: str | None,
    prompt_file: str | None,
    engine: EngineChoice,
    energy: str,
    policies_of: Callable[[Session], list[Policy]],
    names: Sequence[str],
    repeat: int,
    max_new_tokens: int,
) -> BenchReport:
    from ..benchmark import benchmark, read_prompts

    if bundle is None:
        raise UserError("no bundle is given: name one, or --synthetic SHAPE")
    if prompt_file is None:
        raise UserError("no prompts are given: add --prompts FILE, with a prompt a line")
    texts = read_prompts(prompt_file)
    with (
        engine.open(bundle) as session,
        session.open_metering(energy) as session.metering,
        opened(session, names) as runtimes,
    ):
        policies = policies_of(session)
        prompts = [session.prompt_ids(text) for text in texts]
        replies = repeat * len(prompts) * len(policies) * max(1, len(runtimes))
        with Progress(replies, "bench", "replies") as progress:
            return benchmark(
                session,
                prompts,
                policies,
                repeat=repeat,
                max_new_tokens=max_new_tokens,
                runtimes=runtimes,
                advance=progress.advance,
            )


def _forcing(
    reject: bool, trace_file: str | None, blocks: Sequence[NumberOrAuto], synthetic: bool
) -> Callable[[Policy], list[Policy]]:
    """What makes a policy's outcomes the dictated ones, if any are: once for each trace."""
    from ..accept_trace import dictated, read_accept_trace
    from ..builtin_traces import built_in
    from ..decode.forced import force_reject

    if not reject and trace_file is None and not synthetic:
        return lambda policy: [policy]
    if reject and trace_file is not None:
        raise UserError("--force-reject and --accept-trace dictate different things: give one")
    if "auto" in blocks:
        raise UserError(
            "--block auto chooses by what comes of drafts, which --force-reject, --accept-trace "
            "and --synthetic dictate: give a number"
        )
    if reject:
        return lambda policy: [force_reject(policy) if policy.max_drafts else policy]
    if trace_file is None:
        return built_in
    outcomes = read_accept_trace(trace_file)
    return lambda policy: [dictated(policy, outcomes, trace_file)]
