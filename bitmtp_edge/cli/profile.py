"""Measure tokens a second and joules a token, by power mode and policy."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..decode import POLICIES, check_used
from ..errors import Interrupted, UserError
from ..power.metering import OFF
from ..power.modes import PowerModes, Rebooting
from ..profiling.comparison import check_comparable, compare
from ..profiling.lock import locked
from ..profiling.modes import ModeTour
from ..profiling.outputs import Outputs, check_targets
from ..profiling.report import read_report
from ..profiling.watch import open_clocks
from ..progress import Progress
from ..wording import counted
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
from .profile_inputs import Notices, asked_policy, go_on, prompt_ids
from .profile_tables import print_profile
from .signals import terminate_as_interrupt

if TYPE_CHECKING:
    from ..decode.adaptive import Objective
    from ..profiling.report import ProfileReport
    from ..profiling.runner import Profiler


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
    help="Write everything; an unfinished one goes on where it is, and CSV or HTML that is missing "
    "beside a finished one is written from it.",
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
    from ..benchmark import numbered_prompts
    from ..profiling.runner import Given, Profiler, Watcher, wanted_points
    from ..profiling.sampling import Settings

    if reboot and json_file is None:
        raise UserError("--reboot ends this run: add --json FILE, from which the next one goes on")
    check_used(names or POLICIES, gamma=gammas, block=blocks, tau=tau, min_prefix=min_prefix)
    check_objective(objective, blocks, min_prefix, energy)
    inputs = {
        "the bundle": Path(bundle),
        "the prompts": Path(prompt_file),
        "the older profile": old_file,
    }
    check_targets(json_file, csv_file, html_file, inputs)
    old = None if old_file is None else read_report(old_file)
    lines = numbered_prompts(prompt_file)
    notices = Notices()
    tour = ModeTour(_power_modes(root, bool(power_modes), notices), reboot, notices)
    modes = tour.names(power_modes)
    terminate_as_interrupt()
    with ExitStack() as opened:
        if json_file is not None:
            opened.enter_context(locked(json_file))
        session = opened.enter_context(engine.open(bundle))
        session.notice = notices
        metering = opened.enter_context(session.open_metering(energy, root))
        clocks = opened.enter_context(open_clocks(session.engine, root))
        asked = [
            asked_policy(choice, session)
            for name in dict.fromkeys(names or session.policies)
            for choice in choices(name, gammas, blocks, tau, min_prefix, objective)
        ]
        seconds = metering.least_s if min_seconds is None else min_seconds
        outputs = Outputs(json_file, csv_file, html_file, old)
        wanted = wanted_points(modes, asked)
        with Progress(len(wanted), "profile", "points") as progress:
            notices.progress = progress

            def doing(what: str) -> None:
                progress.note = what
                progress.advance(0)

            def saved(report: ProfileReport) -> None:
                if profiler.points:  # else what is there is worth more
                    outputs.write(report)
                progress.advance()

            profiler = Profiler(
                session,
                Given(shlex.join((PROGRAM, *sys.argv[1:])), bundle, prompt_file),
                wanted,
                prompt_ids(session, prompt_file, lines, doing),
                Settings(max_new_tokens, within / 100, max_rounds, seconds),
                metering,
                clocks,
                Watcher(saved, doing, notices),
            )
            if old is not None:
                check_comparable(old, profiler.request)
            finished = go_on(profiler, json_file, outputs, notices)
            progress.advance(len(profiler.points))
            if metering.reason is not None and energy != OFF and finished is None:
                notices(f"no joules are measured: {metering.reason}")
            ended = None if finished is not None else _run(profiler, tour, outputs)
        report = profiler.report() if finished is None else finished
    if report.points:
        print_profile(report, None if old is None else compare(report, old))
    if ended is not None:
        raise ended
    if report.failed:
        raise _failure(report)


def _run(profiler: Profiler, tour: ModeTour, outputs: Outputs) -> Exception | None:
    """What ended it, once what there is has been told; None where nothing did."""
    told = ""
    try:
        profiler.run(tour)
        report = profiler.report()
        if report.complete:  # else what is there may be worth more
            outputs.write(report)
        return None
    except (UserError, OSError) as error:
        return error
    except Rebooting as reboot:
        told = f"{reboot}; "
    except KeyboardInterrupt:
        pass
    told += f"{len(profiler.points)} of {counted(len(profiler.wanted), 'point')} are measured"
    if outputs.json is not None and profiler.points:
        told += f"; the same command goes on from {outputs.json}"
    return Interrupted(told)


def _failure(report: ProfileReport) -> UserError:
    """Of points without figures, one line for all."""
    reasons = "; ".join(report.failures.values())
    if not report.points:
        return UserError(reasons)
    return UserError(
        f"{len(report.failed)} of {counted(len(report.request.points), 'point')} have no figures "
        f"({reasons}): the same command tries them again"
    )


def _power_modes(root: Path, asked: bool, notice: Callable[[str], None]) -> PowerModes | None:
    """None where the machine has none, and nobody asked for one."""
    try:
        return PowerModes(root, notice=notice)
    except UserError:
        if asked:
            raise
        return None
