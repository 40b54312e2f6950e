"""The folder that an export writes: beside the target under another name, which it loses only when
all of it is there.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from bitmtp_edge.bundle import (
    BUNDLE_FILE,
    FORMAT,
    GRAPH_FILES,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
)
from bitmtp_edge.errors import UserError, describe_os_error

PARTIAL = ".partial"
LOCK_FILE = ".lock"
_OUR_FILES = {
    BUNDLE_FILE,
    WEIGHTS_FILE,
    TOKENIZER_FILE,
    TEMPLATE_FILE,
    *GRAPH_FILES.values(),
    LOCK_FILE,
}


def resolve_target(target: Path, force: bool) -> Path:
    """Where ``target`` leads, links followed. UserError if it may not be written or replaced."""
    try:
        resolved = target.resolve()
    except RuntimeError:  # links in a circle, before Python 3.13
        raise UserError(f"{target} is a link that leads to itself; choose another name") from None
    _check_replaceable(resolved, force)
    return resolved


@contextmanager
def new_folder(target: Path, size: int, force: bool) -> Iterator[Path]:
    """A fresh ``<target>.partial`` that no other export can take, removed again on any failure.

    UserError where the disk is too small for ``size`` bytes, another export writes there, or the
    target may not be replaced.
    """
    folder = target.with_name(target.name + PARTIAL)
    try:
        lock = _claim(folder, target)
    except OSError as error:
        raise UserError(f"cannot write beside {target}: {describe_os_error(error)}") from None
    try:
        _check_replaceable(target, force)  # another export may just have finished
        free = shutil.disk_usage(folder).free
        if free < size:
            raise UserError(
                f"{target}: the bundle needs {size >> 20} MiB, the disk has {free >> 20} MiB free"
            )
        yield folder
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            reason = describe_os_error(error)
            raise UserError(
                f"export to {target} failed: {reason}; nothing was left there"
            ) from None
        raise
    finally:
        lock.close()


def publish(folder: Path, target: Path) -> None:
    """Gives the finished folder its name; a bundle that had it is removed afterwards."""
    if not os.path.lexists(target):
        folder.rename(target)
    else:
        replaced = _replaced(target)
        target.rename(replaced)
        try:
            folder.rename(target)
        except OSError:
            replaced.rename(target)
            raise
        # What cannot be removed of the old bundle makes the new one no failure.
        shutil.rmtree(replaced, ignore_errors=True)
    # Not before: without it, another export could take the folder while it has its old name.
    (target / LOCK_FILE).unlink()


def _claim(folder: Path, target: Path) -> BinaryIO:
    """Makes ``folder``, or takes over what an interrupted export left of it; the lock is held as
    long as the file is open.
    """
    _check_ours(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    lock = path.open("wb")
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The export that held it may have given the folder its final name since.
            held = path.exists() and os.path.samestat(os.fstat(lock.fileno()), path.stat())
        except BlockingIOError:
            held = False
        if not held:
            raise UserError(f"another export to {target} is running: wait for it, or stop it")
        for stale in folder.iterdir():
            if stale.name != LOCK_FILE:
                stale.unlink()
    except BaseException:
        lock.close()
        raise
    return lock


def _check_ours(folder: Path) -> None:
    """UserError for a folder that holds anything but what an interrupted export leaves."""
    if not os.path.lexists(folder):
        return
    if (
        folder.is_symlink()
        or not folder.is_dir()
        or any(path.name not in _OUR_FILES or path.is_dir() for path in folder.iterdir())
    ):
        raise UserError(f"{folder} is in the way and was not made by an export; move it")


def _check_replaceable(target: Path, force: bool) -> None:
    if not os.path.lexists(target):
        return
    if not _is_bundle(target):
        raise UserError(
            f"{target} exists and is not a bundle; choose another name, nothing was overwritten"
        )
    if not force:
        raise UserError(
            f"{target} exists; add --force to replace that bundle, or choose another name"
        )
    if os.path.lexists(_replaced(target)):
        raise UserError(f"{_replaced(target)} is in the way; move it, then export again")


def _replaced(target: Path) -> Path:
    return target.with_name(target.name + ".replaced")


def _is_bundle(path: Path) -> bool:
    try:
        value = json.loads((path / BUNDLE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("format") == FORMAT
