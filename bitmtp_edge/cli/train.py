"""Train a ternary multi-token model from a pretrained checkpoint."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ..errors import Interrupted, missing_extra
from .signals import terminate_as_interrupt


@click.command(name="train", help=__doc__)
@click.argument("recipe", metavar="RECIPE", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "source",
    metavar="SRC",
    required=True,
    type=click.Path(path_type=Path),
    help="Checkpoint to start from: a GGUF file or a Hugging Face folder.",
)
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FOLDER",
    required=True,
    type=click.Path(path_type=Path),
    help="Takes the run's state, log and picture, and the trained checkpoint as FOLDER/model.",
)
@click.option(
    "--data",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Where the recipe's source files are [default: beside the recipe].",
)
@click.option(
    "--rows",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Where prepared rows are kept, for other runs too [default: FOLDER/rows].",
)
@click.option(
    "--teacher",
    metavar="SRC",
    type=click.Path(path_type=Path),
    help="Checkpoint whose logits are distilled [default: the one of --from].",
)
@click.option(
    "--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu, cuda or cuda:N."
)
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Instead of the recipe's.")
@click.option(
    "--mtp-weight",
    type=click.FloatRange(0),
    metavar="X",
    help="Instead of the recipe's; 0 trains the matched autoregressive baseline.",
)
@click.option(
    "--block-attention", type=click.Choice(["causal", "full"]), help="Instead of the recipe's."
)
@click.option("--prepare", is_flag=True, help="Only prepare the rows, and say what they hold.")
@click.option("--resume", is_flag=True, help="Go on where an interrupted run stopped.")
def command(
    recipe: Path,
    source: Path,
    target: Path,
    data: Path | None,
    rows: Path | None,
    teacher: Path | None,
    device: str,
    steps: int | None,
    mtp_weight: float | None,
    block_attention: str | None,
    prepare: bool,
    resume: bool,
) -> None:
    try:
        import torch  # noqa: F401 - told here, where the extra can be named
    except ImportError:
        raise missing_extra("torch", "train") from None
    from bitmtp_edge.export.training import run
    from bitmtp_edge.export.training.trainer import STATE_FILE

    plan = run.plan(
        recipe,
        source,
        target,
        data=data,
        rows=rows,
        teacher=teacher,
        steps=steps,
        mtp_weight=mtp_weight,
        block_attention=block_attention,
    )
    terminate_as_interrupt()
    try:
        if prepare:
            for name, corpus in run.prepare(plan).items():
                click.echo(f"{name}: {corpus.size}")
            return
        run.train(plan, device, resume)
    except KeyboardInterrupt:
        if prepare:
            told = "preparing interrupted: rows of the files before are kept"
        elif not (plan.folder / STATE_FILE).is_file():
            told = "training interrupted before its first step: start again"
        else:
            told = f"training interrupted: go on with --resume; the state is in {plan.folder}"
        raise Interrupted(told) from None
    made = shlex.quote(str(target / run.MODEL_FOLDER))
    click.echo(f"make a bundle of it with  bitmtp-edge export {made} -o BUNDLE")
