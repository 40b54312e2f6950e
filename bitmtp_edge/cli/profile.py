"""Measure tokens a second and joules a token, by power mode and policy."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..decode import POLICIES, check_used
from ..errors import Interrupted, UserError, one_line
from ..power.modes import PowerModes, Rebooting
from ..profiling.comparison import check_comparable, compare
from ..profiling.modes import ModeTour
from ..profiling.outputs import Outputs, check_targets
from ..profiling.report import read_report
from ..profiling.watch import open_clocks
from ..progress import Progress
from ..wording import counted, printable
from . import PROGRAM
from .options import (
    EngineChoice,
    FiniteRange,
    NumberOrAuto,
    block_option,
    bundle_argument,
    check_objective,
    choices,
    energy_option,
    engine_options,
    gamma_option,
    max_new_tokens_option,
    objective_option,
    policies_option,
    prompts_option,
    threshold_options,
)
from .profile_tables import print_profile
from .signals import terminate_as_interrupt

if TYPE_CHECKING:
    from ..decode.adaptive import Objective
    from ..profiling.report import PointKey, ProfileReport
    from ..profiling.runner import Profiler
    from ..profiling.sampling import Rounds


@click.command(name="profile", help=__doc__)
@bundle_argument
@prompts_option(required=True)
@policies_option("measure")
@gamma_option("gammas", multiple=True)
@block_option("blocks", multiple=True)
@threshold_options
@objective_option
@click.option(
    "--power-mode",
    "power_modes",
    metavar="NAME|all",
    multiple=True,
    help="Power mode of the board to measure in, by its name; may be repeated. The one from before "
    "is set again at the end [default: the present one].",
)
@click.option("--reboot", is_flag=True, help="Allow power modes that take a reboot.")
@click.option(
    "--root",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default="/",
    help="Folder to find sys, etc and var in [default: /].",
)
@click.option(
    "--within",
    type=FiniteRange(0.1, 50),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="Repeat until half the 95 % interval of tokens a second and of joules a token is so much "
    "of the mean.",
)
@click.option(
    "--max-rounds",
    type=click.IntRange(3),
    default=10,
    show_default=True,
    metavar="N",
    help="Rounds over the prompts after which a point is done all the same.",
)
@click.option(
    "--min-seconds",
    type=FiniteRange(0),
    metavar="S",
    help="Decode each prompt again and again for so long [default: as the power sensor needs it, 2 "
    "or more; without one, 0.5].",
)
@max_new_tokens_option(128)
@engine_options
@energy_option
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write everything; an unfinished one goes on where it is.",
)
@click.option(
    "--csv",
    "csv_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a row a point.",
)
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a page with plots, which needs no other file.",
)
@click.option(
    "--compare",
    "old_file",
    metavar="OLD.json",
    type=click.Path(path_type=Path),
    help="Mark what changed since an older profile's JSON.",
)
def command(
    bundle: str,
    prompt_file: str,
    names: tuple[str, ...],
    gammas: tuple[int, ...],
    blocks: tuple[NumberOrAuto, ...],
    tau: float | None,
    min_prefix: NumberOrAuto | None,
    objective: Objective,
    power_modes: tuple[str, ...],
    reboot: bool,
    root: Path,
    within: float,
    max_rounds: int,
    min_seconds: float | None,
    max_new_tokens: int,
    engine: EngineChoice,
    energy: str,
    json_file: Path | None,
    csv_file: Path | None,
    html_file: Path | None,
    old_file: Path | None,
) -> None:
    from ..benchmark import read_prompts
    from ..profiling.runner import Given, Profiler, wanted_points
    from ..profiling.sampling import Settings

    if reboot and json_file is None:
        raise UserError("--reboot ends this run: add --json FILE, from which the next one goes on")
    check_used(names or POLICIES, gamma=gammas, block=blocks, tau=tau, min_prefix=min_prefix)
    check_objective(objective, blocks, min_prefix)
    inputs = {
        "the bundle": Path(bundle),
        "the prompts": Path(prompt_file),
        "the older profile": old_file,
    }
    check_targets(json_file, csv_file, html_file, inputs)
    old = None if old_file is None else read_report(old_file)
    texts = read_prompts(prompt_file)
    tour = ModeTour(_power_modes(root, bool(power_modes)), reboot, _notice)
    modes = tour.names(power_modes)
    terminate_as_interrupt()
    with ExitStack() as opened:
        session = opened.enter_context(engine.open(bundle))
        metering = opened.enter_context(session.open_metering(energy, root))
        clocks = opened.enter_context(open_clocks(session.engine, root))
        makers = [
            partial(choice.of, session)
            for name in dict.fromkeys(names or session.policies)
            for choice in choices(name, gammas, blocks, tau, min_prefix, objective)
        ]
        seconds = metering.least_s if min_seconds is None else min_seconds
        outputs = Outputs(json_file, csv_file, html_file, old)
        wanted = wanted_points(modes, makers)
        with Progress(len(wanted), "profile", "points") as progress:

            def save(report: ProfileReport) -> None:
                outputs.write(report)
                progress.advance()

            def on_round(key: PointKey, rounds: Rounds) -> None:
                progress.note = _note(key, rounds)
                progress.advance(0)

            profiler = Profiler(
                session,
                Given(shlex.join((PROGRAM, *sys.argv[1:])), bundle, prompt_file),
                wanted,
                [session.prompt_ids(text) for text in texts],
                Settings(max_new_tokens, within / 100, max_rounds, seconds),
                metering,
                clocks,
                save,
                on_round,
            )
            if old is not None:
                check_comparable(old, profiler.request)
            progress.advance(_taken_over(profiler, json_file))
            ended = _run(profiler, tour)
        report = profiler.report()
        if report.complete:  # else what is there may be worth more
            outputs.write(report)
    print_profile(report, None if old is None else compare(report, old))
    if ended is not None:
        told = f"{ended}{len(profiler.points)} of {len(wanted)} points are measured"
        if json_file is not None and profiler.points:
            told += f"; the same command goes on from {json_file}"
        raise Interrupted(told)


def _run(profiler: Profiler, tour: ModeTour) -> str | None:
    """None where all is measured, else what ended it."""
    try:
        profiler.run(tour)
    except Rebooting as reboot:
        return f"{reboot}; "
    except KeyboardInterrupt:
        return ""
    return None


def _taken_over(profiler: Profiler, json_file: Path | None) -> int:
    """How many points a profile in the file has already; says what is measured anew."""
    if json_file is None or not json_file.exists() or not json_file.stat().st_size:
        return 0
    old = None
    try:
        old = read_report(json_file)
        different = profiler.go_on_from(old)
    except UserError as error:
        different = str(error)
    if old is None or different is not None:
        what = "is damaged" if old is None else "is of another profile"
        _notice(f"{json_file} {what} ({different}): all points are measured anew")
        return 0
    asked = [each.key for each in profiler.wanted]
    parts = [f"{counted(len(profiler.points), 'point')} of {json_file} are kept"]
    if again := [point.key.name for point in profiler.before]:
        parts.append(f"measured anew, and kept until then: {', '.join(again)}")
    if gone := [point.key.name for point in old.points if point.key not in asked]:
        parts.append(f"no longer asked for: {', '.join(gone)}")
    _notice("; ".join(parts))
    return len(profiler.points)


def _power_modes(root: Path, asked: bool) -> PowerModes | None:
    """None where the machine has none, and nobody asked for one."""
    try:
        return PowerModes(root, notice=_notice)
    except UserError:
        if asked:
            raise
        return None


def _note(key: PointKey, rounds: Rounds) -> str:
    """The point in work: how many rounds, and how far from the mean the rate may be."""
    margin = rounds.tokens_per_s.margin
    sure = "" if margin is None else f" +-{margin:.1%}"
    return f"{printable(key.name)}: round {len(rounds.rounds)}{sure}"


def _notice(line: str) -> None:
    click.echo(one_line(f"bitmtp-edge: {line}"), err=True)
