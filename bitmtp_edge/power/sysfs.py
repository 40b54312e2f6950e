"""Numbers and texts in the kernel's files."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import describe_os_error
from .source import SourceError

_LONGEST = 4096  # sysfs gives a page at most
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")  # of 64 bits


def integer(text: str) -> int | None:
    """The whole number that ``text`` is; None for anything else, and for one that no machine
    tells: what follows may be arithmetic of floats."""
    return int(text) if _INTEGER.fullmatch(text) else None


def read_text(path: str | Path) -> str:
    """The text of a small file, stripped. OSError where it cannot be read."""
    # Plain calls: a meter reads six such files twenty times a second.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _LONGEST).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


def text_or_none(path: str | Path) -> str | None:
    """The same; None where the file cannot be read, or is empty."""
    try:
        return read_text(path) or None
    except OSError:
        return None


def number_or_none(path: str | Path, most: int | None = None) -> int | None:
    """The whole number in a file; None where there is none, or one beyond ``most``."""
    text = text_or_none(path)
    number = None if text is None else integer(text)
    if number is None or (most is not None and abs(number) > most):
        return None
    return number


def read_number(path: str | Path) -> int:
    """The whole number in a sensor's file. SourceError says which file has none; where it cannot be
    read, its cause is the OSError."""
    try:
        text = read_text(path)
    except OSError as error:
        raise SourceError(describe_os_error(error)) from error
    number = integer(text)
    if number is None:
        raise SourceError(f"{path}: expected a number, found {text[:40]!r}")
    return number
