"""Replay random windows on every engine that works here and compare."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from ..bundle import Bundle
from ..errors import one_line
from ..verification import EngineReport, verify

DISAGREE = 1
WHY_TOKENS_DIFFER = (
    "(Next tokens may differ although every operator agrees: one int8 code that rounds the other\n"
    "way changes what all later layers round, and after random tokens no next token stands out.)"
)


@click.command(name="verify", help=__doc__)
@click.argument("bundle", type=click.Path())
@click.option(
    "--windows",
    default=6,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Windows to replay, of both roles by turns.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Another seed, other windows.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, bundle: str, windows: int, seed: int, as_json: bool) -> None:
    report = verify(
        Bundle.open(bundle),
        windows=windows,
        seed=seed,
        progress=lambda line: click.echo(line, err=True),
    )
    if as_json:
        click.echo(json.dumps({"ok": report.ok, **asdict(report)}, indent=1))
    else:
        for name, reason in report.skipped.items():
            click.echo(one_line(f"{name}: not compared: {reason}"))
        for engine in report.engines:
            click.echo(_line(engine, report.reference))
        if any(engine.fault is None for engine in report.engines):
            click.echo(WHY_TOKENS_DIFFER)
    if not report.ok:
        ctx.exit(DISAGREE)


def _line(report: EngineReport, reference: str) -> str:
    if report.fault:
        return f"{report.engine} DIFFERS from {reference}: {report.fault}"
    calls = "whose operators it does not show"
    if report.operators:
        calls = f"every one of {report.operators} operator calls within its bound"
    return (
        f"{report.engine} agrees with {reference}: {report.windows} windows, {calls}, "
        f"{report.same_ids} of {report.outputs} next tokens the same"
    )
