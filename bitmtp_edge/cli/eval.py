"""Score policies on tasks: right answers, tokens an iteration, rates."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..decode import POLICIES, check_used
from ..errors import UserError
from ..files import new_file
from ..progress import Progress
from . import INTERRUPTED
from .eval_plot import draw, import_pyplot
from .eval_tables import label, tables
from .options import (
    Count,
    EngineChoice,
    NumberOrAuto,
    block_option,
    bundle_argument,
    choices,
    engine_options,
    gamma_option,
    max_new_tokens_option,
    min_prefix_option,
    policies_option,
    tau_option,
)
from .signals import terminate_as_interrupt

if TYPE_CHECKING:
    from ..decode.policies import Policy
    from ..evaluation_report import EvalReport
    from ..session import Session

DIFFERS = 1


@click.command(name="eval", help=__doc__)
@bundle_argument
@click.option(
    "--tasks",
    "sources",
    metavar="PATH",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help='A .jsonl of objects with "task", "prompt", "answer", or a folder of such files; may be '
    "repeated.",
)
@click.option(
    "--baseline",
    "matched",
    metavar="BUNDLE",
    type=click.Path(),
    help="A model trained alike without multi-token drafts: its ar is what speed-ups are over.",
)
@policies_option("score beside ar")
@gamma_option("gammas", multiple=True)
@block_option("blocks", multiple=True)
@tau_option
@min_prefix_option("min_prefixes", multiple=True)
@click.option("--limit", type=Count, metavar="N", help="Only the first N items of each task.")
@max_new_tokens_option(320)
@engine_options
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write everything, every reply too, as one JSON object.",
)
@click.option(
    "--plot",
    "plot_file",
    metavar="FILE.svg",
    type=click.Path(path_type=Path),
    help="Draw tokens an iteration and scores (extra: train).",
)
@click.pass_context
def command(
    ctx: click.Context,
    bundle: str,
    sources: tuple[Path, ...],
    matched: str | None,
    names: tuple[str, ...],
    gammas: tuple[int, ...],
    blocks: tuple[NumberOrAuto, ...],
    tau: float | None,
    min_prefixes: tuple[NumberOrAuto, ...],
    limit: int | None,
    max_new_tokens: int,
    engine: EngineChoice,
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    from ..evaluation import Evaluation
    from ..scoring import read_tasks

    tasks = read_tasks(sources, limit)
    check_used(names or POLICIES, gamma=gammas, block=blocks, tau=tau, min_prefix=min_prefixes)
    _check_targets(json_file, plot_file)
    terminate_as_interrupt()
    with ExitStack() as opened:
        session = opened.enter_context(engine.open(bundle))
        evaluation = Evaluation(
            session,
            _policies(session, names or session.policies, gammas, blocks, tau, min_prefixes),
            tasks,
            baseline=opened.enter_context(engine.open(matched)) if matched else None,
            max_new_tokens=max_new_tokens,
        )
        with Progress(evaluation.total, "eval", "replies") as progress:

            def on_reply(task: str) -> None:
                progress.note = task
                progress.advance()

            evaluation.run(on_reply)
        report = evaluation.report()
    try:
        if json_file:
            with new_file(json_file) as file:
                text = json.dumps({"ok": report.ok, **asdict(report)}, indent=1) + "\n"
                file.write(text.encode())
        if plot_file:
            draw(report, plot_file)
    finally:  # a file that cannot be written does not take the figures along
        _print(report)
    if report.interrupted:
        ctx.exit(INTERRUPTED)
    if not report.ok:
        ctx.exit(DIFFERS)


def _policies(
    session: Session,
    names: Sequence[str],
    gammas: Sequence[int],
    blocks: Sequence[NumberOrAuto],
    tau: float | None,
    min_prefixes: Sequence[NumberOrAuto],
) -> list[Policy]:
    """Every policy of ``names`` with every combination of its settings, each once.

    A min_prefix longer than a block goes with a longer one; with none, it is refused.
    """
    sizes = [block for block in blocks if block != "auto"]
    longest = max(sizes, default=session.bundle.decoding.block)
    found = [
        choice
        for name in names
        for least in min_prefixes or (None,)
        for choice in choices(name, gammas, blocks, tau, least)
        if choice.min_prefix in (None, "auto")
        or choice.block in (None, "auto", longest)
        or int(choice.min_prefix) <= int(choice.block)
    ]
    return [choice.of(session) for choice in dict.fromkeys(found)]


def _check_targets(json_file: Path | None, plot_file: Path | None) -> None:
    """Before the long work: what could not be written after it."""
    if plot_file:
        if plot_file.suffix != ".svg":
            raise UserError(f"--plot {plot_file}: expected a name that ends in .svg")
        import_pyplot()
    for path in (json_file, plot_file):
        if path is None:
            continue
        folder = Path(os.path.realpath(path)).parent
        if (path.exists() and not path.is_file()) or not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(
                f"{path} cannot be written: expected a file name in a folder that takes files"
            )


def _print(report: EvalReport) -> None:
    where = report.environment
    threads = "" if where.threads is None else f", {where.threads} threads"
    done = sum(task.done for task in report.tasks)
    asked = sum(task.items for task in report.tasks)
    click.echo(
        f"{report.bundle.model}, engine {where.engine}{threads}: {len(report.tasks)} tasks, "
        f"{done} prompts, up to {report.max_new_tokens} tokens, greedy"
    )
    if report.interrupted:
        click.echo(f"INTERRUPTED: {done} of {asked} prompts; the figures are those of these")
    taus = {figures.settings["tau"] for figures in report.policies if "tau" in figures.settings}
    if taus:
        click.echo(f"tau {', '.join(f'{tau:g}' for tau in sorted(taus))}")
    over = "ar of the same bundle"
    if report.baseline:
        over = f"ar of the baseline, {report.baseline.path}"
    click.echo(f"Sc.: right answers in %. Rate: tokens/s of decoding, and in brackets over {over}")
    click.echo(
        "ver.: iterations that a verify step decided. Average: of the tasks that have a score and "
        "are not apart"
    )
    click.echo()
    for line in tables(report):
        click.echo(line)
    for figures in report.policies:
        if figures.policy == "ar" or not figures.lossless:
            continue
        count, different = len(figures.replies), figures.different
        told = f"DIFFER from ar's in {different} of {count} replies"
        if not different:
            told = f"are ar's, token for token ({count} replies)"
        click.echo(f"{label(figures)}: its tokens {told}")
