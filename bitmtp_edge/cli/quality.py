"""Measure perplexity, and agreement with the fp32 model, on a text."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from ..errors import UserError
from .options import EngineChoice, bundle_argument, engine_options


@click.command(name="quality", help=__doc__)
@bundle_argument
@click.option(
    "--source",
    required=True,
    type=click.Path(path_type=Path),
    metavar="SRC",
    help="The checkpoint that the bundle was exported from.",
)
@click.option(
    "--text",
    "text_file",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="UTF-8 text to measure on.",
)
@click.option(
    "--positions",
    default=2000,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Next tokens to predict: the first N of the text.",
)
@engine_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    bundle: str, source: Path, text_file: Path, positions: int, engine: EngineChoice, as_json: bool
) -> None:
    from bitmtp_edge.export.quality import WINDOW, measure_quality

    try:
        text = text_file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{text_file} is not UTF-8 text: convert it first") from None
    with engine.open(bundle) as session:
        rows = measure_quality(
            session, source, text, positions, lambda line: click.echo(line, err=True)
        )
    fp32 = rows[0].perplexity
    if as_json:
        models = [{**asdict(row), "ratio": row.perplexity / fp32} for row in rows]
        told = {"source": str(source), "text": str(text_file), "positions": positions}
        click.echo(json.dumps({**told, "models": models}, indent=1))
        return
    click.echo(
        f"{positions} positions of {text_file}, in windows of up to {WINDOW} that share no history"
    )
    click.echo(f"fp32 is {source}, dequantised")
    click.echo()
    width = max(len(row.model) for row in rows)
    click.echo(f"{'model':{width}}  perplexity  to fp32  argmax as fp32  as verify")
    for row in rows:
        click.echo(
            f"{row.model:{width}}  {row.perplexity:10.3f}  {row.perplexity / fp32:7.4f}  "
            f"{row.agreement:14.1%}  {row.agreement_verify:9.1%}"
        )
    if session.bundle.model.weights != "nested":
        return
    click.echo()
    click.echo(
        "W8A8 can be better than int8 activations alone: export smooths activations (it moves loud "
        "channels\ninto the weights), and that row does without."
    )
