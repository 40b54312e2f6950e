"""``bench --synthetic``: a bundle of random weights made, opened, measured and removed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click

from ..progress import Progress
from .bench_runtimes import opened
from .bench_tables import print_report, table
from .options import EngineChoice
from .signals import terminate_as_interrupt

if TYPE_CHECKING:
    from ..decode.policies import Policy
    from ..session import Session
    from ..synthetic import SyntheticReport

MIB = 2**20


def bench_synthetic(
    shape: str,
    engine: EngineChoice,
    energy: str,
    policies_of: Callable[[Session], Sequence[Policy]],
    names: Sequence[str],
    repeat: int,
    max_new_tokens: int,
) -> SyntheticReport:
    """Measures ``shape`` on ``engine``, and decoding on the runtimes ``names`` of it, if any; the
    bundle lies in the system's folder for temporary files until then. Raises UserError for a shape
    that is none, a missing package and a disk too small.
    """
    from bitmtp_edge.export.shapes import shape_of
    from bitmtp_edge.export.synthetic import write_synthetic

    from ..engines.runtimes import none_of
    from ..synthetic import PROMPTS, Made, measure

    parameters = shape_of(shape).parameters
    if (name := engine.check()) != "cuda" and names:  # before gigabytes are written
        raise none_of(name)
    terminate_as_interrupt()  # a bundle may be gigabytes
    with tempfile.TemporaryDirectory(prefix="bitmtp-edge-") as folder:
        began = perf_counter()
        bundle = write_synthetic(shape, Path(folder) / shape)
        made = perf_counter()
        with engine.open(str(bundle.path)) as session:
            facts = Made(shape, parameters, made - began, perf_counter() - made)
            with (
                session.open_metering(energy) as session.metering,
                opened(session, names) as runtimes,
            ):
                policies = policies_of(session)
                replies = repeat * PROMPTS * len(policies) * max(1, len(runtimes))
                with Progress(replies, "bench", "replies") as progress:
                    return measure(
                        session,
                        facts,
                        policies,
                        repeat=repeat,
                        max_new_tokens=max_new_tokens,
                        runtimes=runtimes,
                        advance=progress.advance,
                    )


def print_synthetic(report: SyntheticReport) -> None:
    """What people read."""
    startup, memory, bandwidth = report.startup, report.memory, report.bandwidth
    where = "" if report.device is None else f" on {report.device}"
    click.echo(
        f"synthetic: {report.shape}, {report.parameters / 1e9:.2f} billion random weights "
        f"({report.weights_bytes / MIB:,.0f} MiB), engine {report.engine}{where}"
    )
    click.echo(
        f"start-up: bundle made in {startup.bundle_s:.1f} s, loaded in {startup.load_s:.2f} s; "
        f"first step {startup.first_step_s:.3f} s; first steps of the other {startup.states} "
        f"replay states {startup.states_s:.2f} s"
    )
    held = ", ".join(f"{name} {size / MIB:,.1f}" for name, size in memory.held.items())
    if memory.states is not None:
        held += (
            f"; graphs and kernels of {startup.states} replay states {memory.states / MIB:,.1f}, "
            f"{memory.states / MIB / startup.states:.2f} each"
        )
    if held:
        click.echo(f"memory, MiB: {held}")
    click.echo(f"memory is read at {bandwidth.bytes_per_s / 1e9:,.0f} GB/s: {bandwidth.how}")
    click.echo()
    _print_states(report)
    click.echo()
    print_report(report.bench)


def _print_states(report: SyntheticReport) -> None:
    states = report.states
    ar = next(s.median_us for s in states if (s.role, s.width) == ("verify", 1))
    heading = ("step", "width", "outputs", "us", "AR steps", "MB read", "of bandwidth")
    rows = [
        (
            each.role,
            str(each.width),
            str(each.outputs),
            f"{each.median_us:,.1f}",
            f"{each.median_us / ar:.2f}",
            f"{each.bytes_read / 1e6:,.1f}",
            f"{each.share_of_bandwidth:.0%}",
        )
        for each in states
    ]
    table([heading, *rows])
    click.echo(
        f"(behind {states[0].history} rows of history; medians of {states[0].runs} runs, from the "
        "call to the outputs on the host)"
    )
