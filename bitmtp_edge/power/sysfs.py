"""Numbers and texts in the kernel's files."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import describe_os_error
from .source import SourceError

_LONGEST = 4096  # sysfs gives a page at most


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


def number_or_none(path: str | Path) -> int | None:
    """The whole number in a file; None where there is none."""
    text = text_or_none(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def read_number(path: str | Path) -> int:
    """The whole number in a sensor's file. SourceError says which file has none; where it cannot be
    read, its cause is the OSError."""
    try:
        text = read_text(path)
    except OSError as error:
        raise SourceError(describe_os_error(error)) from error
    try:
        return int(text)
    except ValueError:
        raise SourceError(f"{path}: expected a number, found {text[:40]!r}") from None
