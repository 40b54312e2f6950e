"""``bench --runtime``: the runtimes of engine ``cuda`` that are measured side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from ..engines.runtimes import RUNTIMES

if TYPE_CHECKING:
    from ..session import Session

runtime_option = click.option(
    "--runtime",
    "runtimes",
    multiple=True,
    type=click.Choice(tuple(RUNTIMES)),
    help="Runtime of engine cuda; may be repeated. generic: one width for all decode steps, a KV "
    "buffer for each replay state, verify windows made on the host. m1, m2, m3: generic, but with "
    "width-specialised steps, with shared KV, with windows made on the GPU [default: full, all "
    "three].",
)


@contextmanager
def opened(session: Session, names: Sequence[str]) -> Iterator[dict[str, Session]]:
    """Sessions of the runtimes ``names`` beside ``session``, in the order of :data:`RUNTIMES`; none
    without names. Raises UserError for another engine than ``cuda``."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(session.beside(runtime))
            for name, runtime in RUNTIMES.items()
            if name in names
        }
