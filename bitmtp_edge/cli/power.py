"""Read the board's power, and list or set its power modes."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click

from ..errors import UserError
from ..power.clocks import ClockReader, ClockReport, Clocks, ClockWatch
from ..power.mode_note import left_behind, waiting
from ..power.modes import Held, PowerModes
from ..power.registry import AUTO, KINDS, open_source
from ..power.signals import deferred
from ..power.source import Where
from . import show, tell

GRACE_S = 2.0


@click.command(name="power", help=__doc__, context_settings={"allow_interspersed_args": False})
@click.option(
    "--root",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default="/",
    help="Folder to find sys, etc and var in; power modes of another than / are read from its "
    "files, and set by an nvpmodel of your own on PATH alone [default: /].",
)
@click.option(
    "--source",
    metavar="NAME",
    default=AUTO,
    help=f"{', '.join(KINDS)}, or {AUTO}: the first that works [default: {AUTO}].",
)
@click.option(
    "--tegrastats",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read the newest line of tegrastats in a file.",
)
@click.option("--modes", is_flag=True, help="List the power modes, and the clocks now.")
@click.option(
    "--set-mode",
    metavar="NAME",
    help="Set a power mode: for good, or while COMMAND runs and then the one before.",
)
@click.option(
    "--reboot",
    is_flag=True,
    help="With --set-mode and --restore-mode: allow a mode that takes a reboot.",
)
@click.option(
    "--restore-mode",
    is_flag=True,
    help="Go back to the mode from before a run that was killed, or that waits behind a reboot.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("argv", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    root: Path,
    source: str,
    tegrastats: Path | None,
    modes: bool,
    set_mode: str | None,
    reboot: bool,
    restore_mode: bool,
    as_json: bool,
    argv: tuple[str, ...],
) -> None:
    wanted = sum((modes, set_mode is not None, restore_mode))
    if wanted > 1:
        raise UserError("--modes, --set-mode and --restore-mode are different things: give one")
    if wanted and (source != AUTO or tegrastats is not None):
        raise UserError("--source and --tegrastats are of a reading: leave them out, or the modes")
    if set_mode is None and argv:
        raise UserError(f"{argv[0]!r} goes with --set-mode NAME")
    if reboot and set_mode is None and not restore_mode:
        raise UserError("'--reboot' goes with --set-mode NAME or --restore-mode")
    if argv and reboot:
        raise UserError("a COMMAND cannot run on behind a reboot: leave --reboot out")
    if argv and as_json:
        raise UserError("a COMMAND has its own output: leave --json out, or put it behind COMMAND")
    if set_mode is not None and argv:
        ctx.exit(_run_in_mode(root, set_mode, argv))
    elif set_mode is not None:
        power_modes = _modes(root)
        name = power_modes.find(set_mode).name
        _tell_set(name, not power_modes.keep(name, reboot=reboot), as_json)
    elif restore_mode:
        _tell_set(*_modes(root).restore(reboot=reboot), as_json)
    elif modes:
        _list_modes(root, as_json)
    else:
        _read(root, source, tegrastats, as_json)


def _read(root: Path, name: str, tegrastats: Path | None, as_json: bool) -> None:
    if tegrastats is not None:
        if name not in (AUTO, "tegrastats"):
            raise UserError(f"--tegrastats FILE is no source {name}: leave --source out")
        name = "tegrastats"
    with open_source(name, Where(root, tegrastats), tell) as source:
        reading = source.read()
    if as_json:
        fields = ("rails", "total_mw", "total_is", "source")
        click.echo(json.dumps({name: getattr(reading, name) for name in fields}))
        return
    show(f"{reading.total_mw / 1000:.3f} W  {reading.total_is}, by {reading.source}")
    width = max(map(len, reading.rails))
    for rail, milliwatts in reading.rails.items():
        show(f"  {rail:{width}}  {milliwatts:8.0f} mW")


def _list_modes(root: Path, as_json: bool) -> None:
    modes = _modes(root)
    current, clocks = modes.current(), ClockReader(root).read()
    left = left_behind(root)
    listed = [
        {
            "id": mode.id,
            "name": mode.name,
            "current": current is not None and current.is_(mode),
            "default": mode.id == modes.table.default,
            "reboot": modes.needs_reboot(mode, current),
        }
        for mode in modes.table.modes
    ]
    now = None if current is None else current.name
    if as_json:
        told = {"current": now, "modes": listed, "go_back_to": left, "clocks": asdict(clocks)}
        click.echo(json.dumps(told, indent=1))
        return
    for mode in listed:
        notes = [note for note in ("current", "default") if mode[note]]
        notes += ["takes a reboot"] * bool(mode["reboot"])
        show(f"{mode['id']:3}  {mode['name']:16}  {', '.join(notes)}".rstrip())
    if not any(mode["current"] for mode in listed):
        show(f"now: {now or 'unknown'}")
    _print_clocks(clocks)
    if left is not None:
        again = "a run waits to be given again behind a reboot"
        who = again if waiting(root) else "an earlier run left its mode"
        tell(f"{who}; {left} was before: power --restore-mode")


def _print_clocks(clocks: Clocks) -> None:
    if clocks.gpu_mhz is not None:
        span = f" ({clocks.gpu_min_mhz:.0f} to {clocks.gpu_max_mhz:.0f})"
        known = clocks.gpu_min_mhz is not None and clocks.gpu_max_mhz is not None
        click.echo(f"GPU {clocks.gpu_mhz:.0f} MHz{span if known else ''}")
    if clocks.emc_mhz is not None:
        click.echo(f"EMC {clocks.emc_mhz:.0f} MHz")
    if clocks.jetson_clocks is not None:
        click.echo(f"jetson_clocks {'on' if clocks.jetson_clocks else 'off'}")
    if clocks.throttled_by:
        show(f"throttled by {', '.join(clocks.throttled_by)}")


def _tell_set(name: str | None, rebooting: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"mode": name, "rebooting": rebooting}))
    elif name is None:
        click.echo("no mode was left to restore")
    else:
        show(f"the board reboots into {name}" if rebooting else f"power mode {name}")


def _run_in_mode(root: Path, mode: str, argv: tuple[str, ...]) -> int:
    """The exit code of ``argv``, run while ``mode`` holds."""
    sys.stdout.flush()
    process = None
    with _modes(root).held(mode) as held, ClockWatch(root) as watch:
        try:
            with deferred():  # between its start and our knowing of it
                process = subprocess.Popen(argv)
            code = process.wait()
        except OSError as error:
            raise UserError(f"{argv[0]} cannot be run: {error.strerror or error}") from None
        finally:
            if process is not None and process.poll() is None:
                _end(process)
    tell(_clock_line(held, watch.report()))
    return code if code >= 0 else 128 - code


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)  # it has had the terminal's Ctrl-C too
    process.terminate()
    process.wait()


def _clock_line(held: Held, report: ClockReport) -> str:
    parts = [f"in power mode {held.name}{'' if held.other is None else ' at first'}"]
    for name, seen in (("GPU", report.gpu_mhz), ("EMC", report.emc_mhz)):
        if seen is not None:
            parts.append(f"{name} {seen.lowest:.0f} to {seen.highest:.0f} MHz")
    if report.jetson_clocks is not None:
        parts.append(f"jetson_clocks {'on' if report.jetson_clocks else 'off'}")
    events = [f"{number} {what}" for what, number in report.events.items() if number]
    throttling = events + report.throttled_by
    if throttling:
        parts.append(f"throttled by {', '.join(throttling)}")
    elif report.tells_throttling:
        parts.append("no throttling seen")
    else:
        parts.append("nothing here tells of throttling")
    return "; ".join(parts)


def _modes(root: Path) -> PowerModes:
    return PowerModes(root, notice=tell)
