"""One profile at a time for each JSON file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError

LOCK = ".lock"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """No other process has ``path`` locked for as long as the block lasts, and a file beside it
    that ends in ``.lock``. The system drops the lock of a process that is killed. UserError where
    another one has it."""
    target = Path(os.path.realpath(path))
    beside = target.with_name(target.name + LOCK)
    while True:
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(
                f"another profile writes {path}: wait until it ends, or give another file"
            ) from None
        if _is(beside, descriptor):
            break
        os.close(descriptor)  # whoever had it has removed it: another may have made a new one
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(descriptor)


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
