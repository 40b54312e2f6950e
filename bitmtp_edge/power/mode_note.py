"""The note of the mode to go back to, for a run that is killed before it could."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError, describe_os_error

NOTE = "var/lib/bitmtp-edge/power-mode.json"


class ModeNote:
    """The note, locked. The system drops the lock of a process that ends, however it ends, so a
    note that has text and can be locked is one that somebody left."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self) -> str | None:
        """The name of the mode to go back to; None where nothing is left to do."""
        try:
            told = json.loads(os.pread(self._descriptor, 1 << 16, 0))
        except (ValueError, RecursionError):
            return None  # empty, or half of one, or none of ours
        name = told.get("go_back_to") if isinstance(told, dict) else None
        return name if isinstance(name, str) else None

    def write(self, name: str) -> None:
        """Is on the disk when this returns."""
        self.clear()
        text = json.dumps({"go_back_to": name, "process": os.getpid()})
        os.pwrite(self._descriptor, f"{text}\n".encode(), 0)
        os.fsync(self._descriptor)

    def clear(self) -> None:
        """The file stays: removing it would let two processes lock two files of one name."""
        os.ftruncate(self._descriptor, 0)
        os.fsync(self._descriptor)


def left_behind(root: Path) -> str | None:
    """The mode that a run meant to go back to and did not; None where one still holds it."""
    try:
        with open(root / NOTE, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            return ModeNote(file.fileno()).read()
    except OSError:
        return None


@contextmanager
def locked_note(root: Path, advice: str) -> Iterator[ModeNote]:
    """The note, for as long as the block lasts. UserError where another process has it, and with
    ``advice`` where the folder cannot be written: who may not do that may not set modes either."""
    path = root / NOTE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(
            f"no permission to set power modes ({describe_os_error(error)}): {advice}"
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process holds the power mode ({path}): wait until it ends"
            ) from None
        yield ModeNote(descriptor)
    finally:
        os.close(descriptor)
