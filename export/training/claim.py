"""Folders that one process at a time writes to."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bitmtp_edge.errors import UserError, describe_os_error
from bitmtp_edge.files import PARTIAL

LOCK_FILE = ".lock"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Makes ``folder`` and keeps other processes from it, without what killed ones left half
    written. Folders that it made and that nothing was written to go again. UserError where another
    process has it.
    """
    path = folder / LOCK_FILE
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = path.open("wb")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {describe_os_error(error)}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it may have removed it since.
            held = path.exists() and os.path.samestat(os.fstat(lock.fileno()), path.stat())
        except BlockingIOError:
            held = False
        if not held:
            raise UserError(f"another run writes to {folder}: wait for it, or stop it")
        try:
            for left in folder.glob(f"*{PARTIAL}"):
                left.unlink()
            yield
        finally:
            path.unlink(missing_ok=True)
            with suppress(OSError):
                for each in made:
                    each.rmdir()
