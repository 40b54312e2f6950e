"""What ``profile`` begins with: its policies, its prompts, and what its file has already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, one_line
from ..profiling.report import ProfileReport, read_report
from ..profiling.resume import other_machine, total_now
from ..progress import Progress
from ..wording import counted
from . import PROGRAM, tell

if TYPE_CHECKING:
    from ..profiling.outputs import Outputs
    from ..profiling.runner import Asked, Profiler
    from ..session import Session
    from .options import PolicyChoice


class Notices:
    """Lines on stderr; above the bar, while there is one."""

    progress: Progress | None = None

    def __call__(self, line: str) -> None:
        if self.progress is None:
            tell(line)
        else:
            self.progress.tell(one_line(f"{PROGRAM}: {line}"))


def asked_policy(choice: PolicyChoice, session: Session) -> Asked:
    """A policy to measure, by what was asked for: an auto is one, since what it comes to depends on
    what steps cost in each power mode. UserError as of :meth:`PolicyChoice.of`."""
    from ..profiling.runner import Asked

    block_auto, least_auto = choice.block == "auto", choice.min_prefix == "auto"
    fixed = replace(
        choice,
        block=None if block_auto else choice.block,
        min_prefix=None if least_auto else choice.min_prefix,
        objective="speed",
    ).of(session)
    settings = dict(fixed.settings)
    if block_auto:
        settings["block"] = "auto"
    if "min_prefix" in settings and (least_auto or (block_auto and choice.min_prefix is None)):
        settings["min_prefix"] = "auto"
    if block_auto or least_auto:
        settings["objective"] = choice.objective
    return Asked(fixed.name, settings, partial(choice.of, session))


def prompt_ids(
    session: Session, path: str, lines: Sequence[tuple[int, str]], doing: Callable[[str], None]
) -> list[list[int]]:
    """Ids of the prompts of file ``path``, each with the number of its line. UserError names the
    line of one that the model cannot reply to."""
    found = []
    for index, (number, text) in enumerate(lines, 1):
        doing(f"prompt {index} of {len(lines)} becomes tokens")
        try:
            ids = session.prompt_ids(text)
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
        if len(ids) >= (context := session.states.context):
            raise UserError(
                f"{path}, line {number}: the prompt has {len(ids)} tokens, and the context of "
                f"{context} holds {context - 1} and a reply: shorten the prompt"
            )
        found.append(ids)
    doing("")
    return found


def go_on(
    profiler: Profiler, path: Path | None, outputs: Outputs, notice: Callable[[str], None]
) -> ProfileReport | None:
    """Takes over what a profile in file ``path`` has already, and says what is measured anew.

    A report where that is finished: ``path`` has all that is asked for, and what else is to be
    written has been. UserError where its points are of another machine.
    """
    if path is None or not path.exists() or not path.stat().st_size:
        return None
    try:
        old = read_report(path)
    except UserError as error:
        notice(f"{path} is damaged ({error}): all points are measured anew")
        return None
    here = profiler.report().environment
    other = other_machine(old, profiler.request, here, lambda: total_now(profiler.metering))
    if other is not None:
        raise UserError(
            f"{path} is of another machine or sensor ({other}), and one table cannot hold both: "
            "give another --json, or remove the file"
        )
    if old.complete and old.request == profiler.request and outputs.missing:
        written = " and ".join(map(str, outputs.missing))
        outputs.write_tables(old)
        notice(f"{path} is finished: {written} written from it, and nothing is measured")
        return old
    if (different := profiler.go_on_from(old)) is not None:
        notice(f"{path} is of another profile ({different}): all points are measured anew")
        return None
    asked = [each.key for each in profiler.wanted]
    parts = []
    if kept := len(profiler.points):
        parts.append(f"{counted(kept, 'point')} of {path} {'is' if kept == 1 else 'are'} kept")
    if again := [point.key.name for point in profiler.before]:
        parts.append(f"measured anew, and kept until then: {', '.join(again)}")
    if gone := [point.key.name for point in old.points if point.key not in asked]:
        parts.append(f"no longer asked for: {', '.join(gone)}")
    if parts:
        notice("; ".join(parts))
    return None
