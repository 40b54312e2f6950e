"""Turn a checkpoint (GGUF file or Hugging Face folder) into a bundle."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import Interrupted
from .signals import terminate_as_interrupt


@click.command(name="export", help=__doc__)
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", "target", metavar="BUNDLE", required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--weights",
    type=click.Choice(["nested", "ternary"]),
    help="What to expect: trained ternary codes, or floating point, which is exported as nested "
    "weights [default: whichever SRC has].",
)
@click.option(
    "--kv",
    type=click.Choice(["nested", "fp16"]),
    help="How keys and values are kept: nested 4+4 bits, or 16 bits [default: nested for nested "
    "weights, fp16 for ternary].",
)
@click.option(
    "--context", type=int, metavar="N", help="Tokens the bundle serves [default: the checkpoint's]."
)
@click.option("--force", is_flag=True, help="Replace an existing bundle.")
def command(
    source: Path,
    target: Path,
    weights: str | None,
    kv: str | None,
    context: int | None,
    force: bool,
) -> None:
    from bitmtp_edge.export.pipeline import export_bundle

    terminate_as_interrupt()  # what was written is removed again
    try:
        bundle = export_bundle(source, target, weights=weights, kv=kv, context=context, force=force)
    except KeyboardInterrupt:
        raise Interrupted(f"export interrupted: {target} was not written") from None
    size = sum(entry.bytes for entry in bundle.manifest.files.values())
    click.echo(
        f"{target}: {bundle.model.name}, {bundle.model.weights} weights, {size / 2**20:.1f} MiB"
    )
