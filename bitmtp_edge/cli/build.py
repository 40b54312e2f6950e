"""Build a bundle's engines for TensorRT, or check another engine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ..bundle import Bundle
from ..errors import Interrupted
from . import tell
from .options import bundle_argument
from .signals import terminate_as_interrupt

if TYPE_CHECKING:
    from ..building.plans import BuildReport


@click.command(name="build", help=__doc__)
@bundle_argument
@click.option(
    "--target",
    required=True,
    type=click.Choice(["tensorrt", "cuda", "cpu"]),
    help="tensorrt: build an engine for each replay state, where it is missing or does not fit "
    "this machine any more. cuda, cpu: nothing is built; run each replay state once.",
)
@click.option(
    "--states",
    multiple=True,
    metavar="PATTERN",
    help="Only replay states of such names, as of files: verify-m1-*; may be repeated. *-logits "
    "are those that sampling takes [default: all of greedy decoding].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(bundle: str, target: str, states: tuple[str, ...], as_json: bool) -> None:
    from ..building.states import chosen_states

    opened = Bundle.open(bundle)
    chosen = chosen_states(opened, states)
    if target == "tensorrt":
        from ..building.plans import build_plans

        terminate_as_interrupt()
        try:
            built = build_plans(opened, chosen, tell)
        except KeyboardInterrupt:
            raise Interrupted(
                "build interrupted: the engines that were built are kept; the same command goes on"
            ) from None
        click.echo(json.dumps(asdict(built), indent=1) if as_json else _built(built))
        return
    from ..building.checks import run_each_once

    memory = run_each_once(opened, target, chosen)
    if as_json:
        click.echo(
            json.dumps({"target": target, "states": len(chosen), "memory": memory}, indent=1)
        )
        return
    parts = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in memory.items())
    click.echo(f"engine {target} runs all {len(chosen)} replay states: {parts}")


def _built(report: BuildReport) -> str:
    count = len(report.engines)
    return (
        f"{count} engines for TensorRT, {report.built} of them built now: "
        f"{report.engine_bytes / 2**20:.2f} MiB in all, beside {report.weight_bytes / 2**20:.1f} "
        "MiB of weights.bin, which they share (engine tensorrt is untested on real TensorRT: check "
        "it with  bitmtp-edge verify)"
    )
