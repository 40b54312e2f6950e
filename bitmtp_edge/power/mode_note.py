"""The note of the mode to go back to, for a run that is killed before it could."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError, describe_os_error

NOTE = "var/lib/bitmtp-edge/power-mode.json"


class ModeNote:
    """The note, locked. The system drops the lock of a process that ends, however it ends, so a
    note that has text and can be locked is one that somebody left."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self) -> str | None:
        """The name of the mode to go back to; None where nothing is left to do."""
        name = self._fields().get("go_back_to")
        return name if isinstance(name, str) else None

    @property
    def waiting(self) -> bool:
        """Whether the board reboots for the run that left it, which is to be given again."""
        return self._fields().get("waiting") is True

    def write(self, name: str, *, waiting: bool = False) -> None:
        """Is on the disk when this returns."""
        self.clear()
        told = {"go_back_to": name, "process": os.getpid(), "waiting": waiting}
        os.pwrite(self._descriptor, f"{json.dumps(told)}\n".encode(), 0)
        os.fsync(self._descriptor)

    def clear(self) -> None:
        """The file stays: removing it would let two processes lock two files of one name."""
        os.ftruncate(self._descriptor, 0)
        os.fsync(self._descriptor)

    def _fields(self) -> dict[str, Any]:
        try:
            told = json.loads(os.pread(self._descriptor, 1 << 16, 0))
        except (ValueError, RecursionError):
            return {}  # empty, or half of one, or none of ours
        return told if isinstance(told, dict) else {}


def left_behind(root: Path) -> str | None:
    """The mode that a run meant to go back to and did not; None where one still holds it."""
    with _shared(root) as note:
        return None if note is None else note.read()


def waiting(root: Path) -> bool:
    """Whether what is left behind is of a run for which the board reboots, not of one killed."""
    with _shared(root) as note:
        return note is not None and note.waiting


@contextmanager
def shared_note(root: Path) -> Iterator[None]:
    """Nobody else locks the note for as long as the block lasts, where there is one, and nobody
    has it now. Takes no more than leave to read it."""
    with _shared(root):
        yield


@contextmanager
def _shared(root: Path) -> Iterator[ModeNote | None]:
    """The note, locked for readers; None where there is none, or somebody has it."""
    try:
        descriptor = os.open(root / NOTE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            yield None
        else:
            yield ModeNote(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked_note(root: Path, advice: Callable[[], str]) -> Iterator[ModeNote]:
    """The note, for as long as the block lasts. UserError where another process has it, and with
    ``advice`` where the folder cannot be written: who may not do that may not set modes either."""
    path = root / NOTE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(
            f"no permission to set power modes ({describe_os_error(error)}): {advice()}"
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process holds the power mode, or measures in it ({path}): "
                "wait until it ends"
            ) from None
        yield ModeNote(descriptor)
    finally:
        os.close(descriptor)
