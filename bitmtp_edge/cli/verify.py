"""Replay random windows on every engine that works here and compare."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from ..bundle import Bundle
from ..verification import EngineReport, verify

DISAGREE = 1


@click.command(name="verify", help=__doc__)
@click.argument("bundle", type=click.Path())
@click.option("--windows", default=6, show_default=True, type=click.IntRange(1), metavar="N")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), metavar="N")
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
            click.echo(f"{name}: not compared: {reason}")
        for engine in report.engines:
            click.echo(_line(engine, report.reference))
    if not report.ok:
        ctx.exit(DISAGREE)


def _line(report: EngineReport, reference: str) -> str:
    if report.fault:
        return f"{report.engine} DIFFERS from {reference}: {report.fault}"
    return (
        f"{report.engine} agrees with {reference}: {report.windows} windows, every one of "
        f"{report.operators} operator calls within its bound, {report.same_ids} of "
        f"{report.outputs} next tokens the same"
    )
