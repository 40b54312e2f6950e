"""Turn a checkpoint (GGUF file or Hugging Face folder) into a bundle."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import click

from ..errors import UserError


@click.command(name="export", help=__doc__)
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", "target", metavar="BUNDLE", required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--weights",
    type=click.Choice(["nested"]),
    default="nested",
    show_default=True,
    help="Weight recipe.",
)
@click.option(
    "--kv",
    type=click.Choice(["nested", "fp16"]),
    default="nested",
    show_default=True,
    help="How keys and values are kept: nested 4+4 bits, or 16 bits.",
)
@click.option(
    "--context", type=int, metavar="N", help="Tokens the bundle serves [default: the checkpoint's]."
)
@click.option("--force", is_flag=True, help="Replace an existing bundle.")
def command(
    source: Path, target: Path, weights: str, kv: str, context: int | None, force: bool
) -> None:
    from bitmtp_edge.export.pipeline import export_bundle

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)  # as Ctrl-C: what was written is removed again
    try:
        bundle = export_bundle(source, target, kv=kv, context=context, force=force)
    except KeyboardInterrupt:
        raise UserError(f"export interrupted: {target} was not written") from None
    size = sum(entry.bytes for entry in bundle.manifest.files.values())
    click.echo(
        f"{target}: {bundle.model.name}, {bundle.model.weights} weights, {size / 2**20:.1f} MiB"
    )


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
