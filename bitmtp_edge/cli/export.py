"""Turn a checkpoint (GGUF file or Hugging Face folder) into a bundle."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

import click


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

    signal.signal(signal.SIGTERM, _leave)
    bundle = export_bundle(source, target, kv=kv, context=context, force=force)
    size = sum(entry.bytes for entry in bundle.manifest.files.values())
    click.echo(
        f"{target}: {bundle.model.name}, {bundle.model.weights} weights, {size / 2**20:.1f} MiB"
    )


def _leave(number: int, frame: FrameType | None) -> None:
    """A terminated export removes what it wrote, as one that Ctrl-C ends."""
    sys.exit(128 + number)
