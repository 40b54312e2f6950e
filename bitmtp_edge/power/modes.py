"""The board's power modes: listed, set by name, and given back."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import Interrupted, UserError
from .mode_note import ModeNote, left_behind, locked_note, shared_note
from .nvpmodel import (
    Current,
    Done,
    Mode,
    Table,
    find_command,
    parse_conf,
    parse_query,
    parse_status,
    run,
)
from .signals import deferred, interrupt, on_signals
from .sysfs import text_or_none

CONF = "etc/nvpmodel.conf"
STATUS = "var/lib/nvpmodel/status"


@dataclass(frozen=True)
class Patience:
    """Seconds: for a question to nvpmodel, for a change, and for a change to hold."""

    query_s: float = 5.0
    set_s: float = 30.0
    hold_s: float = 10.0
    poll_s: float = 0.2


class Rebooting(Interrupted):
    """The board is about to reboot into a power mode."""


@dataclass
class Held:
    """The mode that a block holds. other: known behind the block, what the mode was at its end
    where somebody else had set another one, or nobody could tell."""

    name: str
    other: str | None = None


class PowerModes:
    """The modes of ``root``'s nvpmodel.conf, changed by ``command``.

    ``notice`` is told in one line of a note that is dropped. UserError where there is neither a
    configuration nor the command.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        command: str | None = None,
        patience: Patience | None = None,
        sleep: Callable[[float], None] = time.sleep,
        notice: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.root = root
        self._notice = notice
        self._command = command or find_command(root)
        self._patience = patience or Patience()
        self._sleep = sleep
        self._held: Held | None = None
        self.table = self._read_table()
        if not self.table.modes and self._command is None:
            raise UserError(
                f"no power modes here: neither {root / CONF} nor nvpmodel, which JetPack brings"
            )

    def current(self) -> Current | None:
        """The mode now, by nvpmodel or else by its status file; None where neither tells one.
        UserError where nvpmodel hangs."""
        told = None
        if self._command is not None:
            told = parse_query(self._run("-q", within_s=self._patience.query_s).output)
        if told is None:
            status = text_or_none(self.root / STATUS)
            mode = None if status is None else self.table.numbered(parse_status(status))
            told = None if mode is None else Current(mode.name, mode.id)
        return told

    def other_than(self, name: str) -> str | None:
        """The mode now where it is not ``name``, or "unknown"; None where it still is. One question
        to nvpmodel; never raises."""
        try:
            now = self.current()
        except UserError as error:
            return f"unknown ({error})"
        if now is None:
            return "unknown"
        return None if now.name == name else now.name

    def kept(self) -> AbstractContextManager[None]:
        """For work in the present mode: no process that goes by the note sets a mode while the
        block lasts, as far as this account may say so. Never raises, and sets nothing."""
        return shared_note(self.root)

    def find(self, name: str) -> Mode:
        """The mode ``name``, capitals aside. UserError names those there are."""
        found = self.table.named(name)
        alike = [mode for mode in self.table.modes if mode.name.lower() == name.lower()]
        if found is None and len(alike) == 1:
            found = alike[0]
        if found is None:
            there = ", ".join(mode.name for mode in self.table.modes)
            there = f"take one of {there}" if there else f"{self.root / CONF} lists none"
            raise UserError(f"there is no power mode {name!r} here: {there}")
        return found

    def needs_reboot(self, mode: Mode, current: Current | None) -> bool:
        """Whether the configuration says that getting from ``current`` to ``mode`` takes one."""
        now = None if current is None else self.table.named(current.name)
        return now is not None and not mode.gates_as(now)

    def set(self, name: str, *, reboot: bool = False) -> bool:
        """Sets the mode ``name``, and returns once nvpmodel says that it holds.

        False: the board is about to reboot into it, which only happens where ``reboot`` allows it.
        Raises UserError where it would take a reboot that is not allowed, where nvpmodel lacks
        permission, fails or hangs, and where it claims success and the mode does not hold.
        """
        mode = self.find(name)
        before = self.current()
        if before is not None and before.is_(mode):
            return True
        if not reboot and self.needs_reboot(mode, before):
            raise _takes_reboot(mode)
        answer = "YES\n" if reboot else "no\n"
        with deferred():  # what it has begun it ends
            done = self._run("-m", str(mode.id), within_s=self._patience.set_s, answer=answer)
        if done.asks_for_reboot and not reboot:
            raise _takes_reboot(mode)
        if done.code != 0 or (done.tells_error and not self._holds(mode)):
            raise self._failed(mode, done)
        if done.asks_for_reboot:
            return False
        self._wait_for(mode, done)
        return True

    @contextmanager
    def held(self, name: str, *, reboot: bool = False) -> Iterator[Held]:
        """Mode ``name`` for as long as the block lasts, then the mode from before.

        Also after an exception, and so after Ctrl-C; on the main thread SIGTERM and SIGHUP are
        KeyboardInterrupt here too. A process that is killed outright leaves the mode, and a note:
        whoever holds or restores a mode next goes back to what that process meant to go back to.
        reboot: the way there and back may take one. On the way there :class:`Rebooting` is raised,
        and the note is left for whoever holds a mode after it. Inside the block :meth:`change` goes
        to other modes. ``notice`` is told where the mode at the end is not the one that was held.
        Raises UserError as :meth:`set` does, and where the mode before cannot be told or set again;
        that comes behind what the block failed with.
        """
        mode = self.find(name)
        self._can_set()
        with locked_note(self.root, lambda: self._advice(mode)) as note, on_signals(interrupt):
            before = self._left(note) or self._mode_to_go_back_to()
            note.write(before)
            fault: BaseException | None = None
            try:
                self.change(mode.name, reboot=reboot)
                self._held = Held(mode.name)
                yield self._held
            except Rebooting:
                note.write(before, waiting=True)
                raise
            except BaseException as error:
                fault = error
                raise
            finally:
                if not note.waiting:
                    with on_signals(signal.SIG_IGN):
                        self._let_go()
                        self._go_back(before, reboot=reboot, fault=fault)
                        note.clear()

    def change(self, name: str, *, reboot: bool = False) -> None:
        """As :meth:`set`; where the board is about to reboot, raises :class:`Rebooting`."""
        mode = self.find(name)
        held, self._held = self._held, None  # none is, where this fails half-way
        if not self.set(mode.name, reboot=reboot):
            raise Rebooting(f"the board reboots into power mode {mode.name}")
        if held is not None:
            held.name, self._held = mode.name, held

    def restore(self, *, reboot: bool = False) -> tuple[str | None, bool]:
        """Goes back to the mode of a note that somebody left. Its name, or None without one; and
        whether the board is about to reboot into it, as ``reboot`` allows."""
        self._can_set()
        with locked_note(self.root, lambda: "run this command with sudo") as note:
            before = self._left(note)
            holds = before is None or self._go_back(before, reboot=reboot)
            note.clear()
            return before, not holds

    def keep(self, name: str, *, reboot: bool = False) -> bool:
        """As :meth:`set`, for good: a note that somebody left is void then."""
        mode = self.find(name)
        self._can_set()
        with locked_note(self.root, lambda: _by_hand(mode)) as note:
            done = self.set(name, reboot=reboot)
            note.clear()
            return done

    def _read_table(self) -> Table:
        try:
            text = (self.root / CONF).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return Table((), None)
        return parse_conf(text)

    def _mode_to_go_back_to(self) -> str:
        current = self.current()
        if current is None:
            raise UserError(
                "the power mode now is unknown, so it could not be restored: set one first"
            )
        return self.find(current.name).name

    def _left(self, note: ModeNote) -> str | None:
        """The mode that somebody left a note of; None, and no note, where there is none such."""
        name = note.read()
        if name is None:
            return None
        try:
            return self.find(name).name
        except UserError as error:
            # Flashed again since, or given another configuration: nothing is there to go back to.
            self._notice(f"an earlier run left a note, which is dropped: {error}")
            note.clear()
            return None

    def _let_go(self) -> None:
        """The end of a block that held a mode: says so where that is not the one there is."""
        held, self._held = self._held, None
        if held is None:
            return
        held.other = self.other_than(held.name)
        if held.other is not None:
            self._notice(
                f"power mode {held.name} was held, and at the end the mode is {held.other}: "
                "something else sets it"
            )

    def _go_back(
        self, name: str, *, reboot: bool = False, fault: BaseException | None = None
    ) -> bool:
        """As :meth:`set`, announcing a reboot; an error tells the fault that it comes behind."""
        mode = self.find(name)
        try:
            announced = reboot and self.needs_reboot(mode, self.current())
            if announced:
                self._notice(f"the board reboots now, back into power mode {name}")
            holds = self.set(name, reboot=reboot)
            if not holds and not announced:
                self._notice(f"the board reboots, back into power mode {name}")
            return holds
        except UserError as error:
            told = f"the power mode could not be set back to {name}: {error}"
            if (command := _command_of(mode)) not in told:
                told += f"; to do it: {command}"
            if isinstance(fault, Exception):
                what = str(fault) if isinstance(fault, UserError) else type(fault).__name__
                told = f"{what}; then {told}"
            raise UserError(told) from fault

    def _advice(self, mode: Mode) -> str:
        """To who may not hold ``mode``."""
        left = left_behind(self.root)
        if left is not None:
            return f"an earlier run left its power mode, {left} was before: {restore_by_hand()}"
        if self.other_than(mode.name) is None:
            return "run this command with sudo"
        return _by_hand(mode)

    def _holds(self, mode: Mode) -> bool:
        now = self.current()
        return now is not None and now.is_(mode)

    def _wait_for(self, mode: Mode, done: Done) -> None:
        deadline = time.monotonic() + self._patience.hold_s
        while not self._holds(mode):
            if time.monotonic() >= deadline:
                now = self.current()
                raise UserError(
                    f"nvpmodel set {mode.name} without an error, and {self._patience.hold_s:g} s "
                    f"later the mode is {'none' if now is None else now.name} ({done.complaint})"
                )
            self._sleep(self._patience.poll_s)

    def _failed(self, mode: Mode, done: Done) -> UserError:
        if done.lacks_permission or os.geteuid() != 0:
            return UserError(
                f"no permission to set power mode {mode.name} ({done.complaint}): {_by_hand(mode)}"
            )
        return UserError(f"nvpmodel could not set {mode.name}: {done.complaint}")

    def _run(self, *arguments: str, within_s: float, answer: str = "no\n") -> Done:
        return run(self._can_set(), *arguments, within_s=within_s, answer=answer)

    def _can_set(self) -> str:
        """nvpmodel. UserError where there is none, or it is not that of ``root``."""
        if self._command is not None:
            return self._command
        if self.root.resolve() != Path("/"):
            raise UserError(
                f"the power modes of {self.root} cannot be set from here: nvpmodel sets those of "
                "this machine (leave --root out)"
            )
        raise UserError("power modes are set by nvpmodel, which is not here")


def restore_by_hand() -> str:
    """The command that goes back to the mode of a note; a path where sudo would not find ours."""
    program = Path(sys.executable).with_name("bitmtp-edge")
    return f"sudo {program if program.exists() else program.name} power --restore-mode"


def _takes_reboot(mode: Mode) -> UserError:
    return UserError(
        f"power mode {mode.name} takes a reboot: add --reboot to allow it, or do it yourself: "
        f"{_command_of(mode)}"
    )


def _by_hand(mode: Mode) -> str:
    return f"run this command with sudo, or set it yourself: {_command_of(mode)}"


def _command_of(mode: Mode) -> str:
    return f"sudo nvpmodel -m {mode.id}"
