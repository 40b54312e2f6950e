"""Predict whether a bundle fits a board, in which context, how fast."""

from __future__ import annotations

import json
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import click

from ..errors import UserError, one_line

if TYPE_CHECKING:
    from bitmtp_edge.profiles import PowerMode, Profile

    from ..bundle import Bundle
    from ..decode.policies import Policy
    from ..planning import Plan, Rate

DOES_NOT_FIT = 1
PARTS = {
    "weights": "one copy",
    "kv": "of the segment of {segment:,} tokens, workspace rows too",
    "kv_growth": "the segment before, until its history has moved",
    "arena": "what operators hand to each other, in the widest step",
    "workspace": "of the operator that needs most",
    "step": "inputs and outputs",
    "engines": "plans, contexts and CUDA graphs",
    "process": "CUDA, TensorRT and Python",
}


@click.command(name="plan", help=__doc__)
@click.argument("bundle", type=click.Path(), required=False)
@click.option(
    "--profile",
    "name",
    metavar="NAME",
    help="The board, such as orin-nx-16gb [default: this one, where it is a board].",
)
@click.option(
    "--shape",
    metavar="SHAPE",
    help="In place of BUNDLE: a published model by its sizes (bitnet-2b, bonsai-1.7b, bonsai-4b, "
    "llama-2-7b).",
)
@click.option(
    "--context",
    type=int,
    metavar="N",
    help="Tokens that prompt and reply may have together [default: all that the bundle serves].",
)
@click.option(
    "--power-mode",
    metavar="NAME",
    help="Predict for this mode of nvpmodel [default: for each of the board's].",
)
@click.option(
    "--accept-trace",
    "trace_file",
    metavar="FILE",
    type=click.Path(),
    help="What comes of each iteration, as in bench [default: traces of the papers' tasks].",
)
@click.option("--list-profiles", is_flag=True, help="Print the names of the boards, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    ctx: click.Context,
    bundle: str | None,
    name: str | None,
    shape: str | None,
    context: int | None,
    power_mode: str | None,
    trace_file: str | None,
    list_profiles: bool,
    as_json: bool,
) -> None:
    from ..planning import plan

    if list_profiles:
        _print_profiles(as_json)
        return
    profile = _profile(name)
    modes = None if power_mode is None else [profile.mode(power_mode)]
    opened = _bundle(bundle, shape)
    policies = _policies(opened, trace_file)
    found = plan(opened, profile, policies, context=context, modes=modes)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=1))
    else:
        _print(found)
    if not found.fits:
        ctx.exit(DOES_NOT_FIT)


def _print_profiles(as_json: bool) -> None:
    from bitmtp_edge.profiles import load_profile, profile_names

    profiles = [load_profile(name) for name in profile_names()]
    if as_json:
        click.echo(json.dumps([profile.name for profile in profiles], indent=1))
        return
    for profile in profiles:
        names = ", ".join(mode.name for mode in profile.modes)
        click.echo(f"{profile.name:14}  {profile.board}: {names}")


def _profile(name: str | None) -> Profile:
    from bitmtp_edge.profiles import load_profile, profile_names, profile_of_module

    from ..host import read_host

    if name is not None:
        return load_profile(name)
    host = read_host()
    found = profile_of_module(host.modules, host.memory)
    if found is None:
        raise UserError(
            "this machine is no board that there is a profile of: add --profile with one of "
            f"{', '.join(profile_names())}"
        )
    return found


def _bundle(path: str | None, shape: str | None) -> Bundle:
    from ..bundle import Bundle

    if (path is None) == (shape is None):
        raise UserError("name a bundle or a --shape, and not both")
    if shape is None:
        assert path is not None
        return Bundle.open(path, check_hashes=False)
    from bitmtp_edge.export.synthetic import describe_synthetic

    return describe_synthetic(shape)


def _policies(bundle: Bundle, trace_file: str | None) -> list[Policy]:
    """ar, and what the bundle drafts with, whose acceptance is a trace's."""
    from ..accept_trace import dictated, read_accept_trace
    from ..builtin_traces import built_in
    from ..decode.policies import AutoRegressive, Hybrid, NestedSelfSpeculation

    found: list[Policy] = [AutoRegressive()]
    defaults = bundle.decoding
    drafting: Policy
    if defaults.block is not None and defaults.tau is not None and defaults.min_prefix is not None:
        drafting = Hybrid(defaults.block, defaults.tau, min(defaults.min_prefix, defaults.block))
    elif defaults.gamma is not None:
        drafting = NestedSelfSpeculation(defaults.gamma)
    elif trace_file is not None:
        raise UserError(
            f"{bundle.model.name} drafts with nothing, so --accept-trace has no effect: leave it "
            "out"
        )
    else:
        return found
    if trace_file is None:
        return found + built_in(drafting)
    return [*found, dictated(drafting, read_accept_trace(trace_file), trace_file)]


def _print(plan: Plan) -> None:
    from ..footprint import ESTIMATED

    profile, parts = plan.profile, plan.footprint
    verdict = "fits" if plan.fits else "DOES NOT FIT"
    click.echo(
        f"{one_line(plan.model)} on {profile.board}, {plan.context:,} tokens of context: {verdict}"
    )
    for part, told in PARTS.items():
        size = getattr(parts, part)
        note = told.format(segment=plan.segment) + (", estimated" if part in ESTIMATED else "")
        click.echo(f"  {part:10}  {_mib(size):>12}  {note}")
    unsure = ", not verified" if "available_mb" in profile.unverified else ""
    click.echo(f"  {'in all':10}  {_mib(parts.total):>12}")
    click.echo(f"  {'available':10}  {_mib(plan.available):>12}  without a desktop{unsure}")
    click.echo(f"largest context that fits: {_largest(plan)}")
    _print_rates(plan)


def _largest(plan: Plan) -> str:
    if plan.largest_context is None:
        return "none: it does not fit in any context, so there are no rates"
    told = f"{plan.largest_context:,} tokens"
    return told if plan.fits else f"{told}: run, or export, with --context {plan.largest_context}"


def _print_rates(plan: Plan) -> None:
    from ..planning import NOTICE
    from ..step_prediction import ASSUMPTIONS

    if not plan.rates:
        return
    where = "" if plan.fits else f", in the largest context that fits ({plan.largest_context:,})"
    click.echo(f"\nTokens a second{where}, {NOTICE}.")
    for history in dict.fromkeys(rate.history for rate in plan.rates):
        rates = [rate for rate in plan.rates if rate.history == history]
        first = [rate for rate in rates if rate.mode == rates[0].mode]
        click.echo(f"\nbehind {history:,} tokens:")
        rows = [
            ["", "GPU", "GPU", "memory", *(rate.policy for rate in first)],
            ["power mode", "SMs", "MHz", "GB/s", *map(_per_iteration, first)],
        ]
        for name in dict.fromkeys(rate.mode for rate in rates):
            mode = plan.profile.mode(name)
            figures = f"{mode.multiprocessors}", f"{mode.gpu_mhz:,}", f"{mode.bandwidth_gb_s:.1f}"
            mine = [rate for rate in rates if rate.mode == name]
            rows.append([_mode_label(mode), *figures, *map(_cell, mine)])
        _print_table(rows)
    click.echo(
        "\n(tok/it: tokens that an iteration is taken to commit; what a model really does depends "
        "on the text:\nmeasure it with bench. In brackets: what the nominal bandwidth allows, were "
        "all else free. A mode is\na set of clocks, not of watts: one of more watts may have a "
        "slower GPU with more multiprocessors (SMs).\n*: only on boards that were flashed with the "
        "-super configuration. ~: a figure of it is not verified.)"
    )
    click.echo("assumed:")
    for each in ASSUMPTIONS:
        told = f"{each.name}: {each.value:g} {each.unit}; from {each.source}"
        click.echo(fill(told, 99, initial_indent="  ", subsequent_indent="    "))


def _per_iteration(rate: Rate) -> str:
    return f"{rate.tokens_per_iteration:.3g} tok/it"


def _cell(rate: Rate) -> str:
    return f"{rate.tokens_per_s:,.0f} ({rate.at_most:,.0f})"


def _mode_label(mode: PowerMode) -> str:
    super_only = "*" if mode.flashed == ("super",) else ""
    return f"{mode.name}{super_only}{'' if mode.sure else '~'}"


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        click.echo("  ".join([f"  {first:{widths[0]}}", *cells]))


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
