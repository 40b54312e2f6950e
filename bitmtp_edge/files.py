"""Files that appear under their name only when they are whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that replaces ``path`` at the end of the block, and leaves it as it was on failure.

    Links are followed. OSError names the path.
    """
    target = Path(os.path.realpath(path))
    partial = target.with_name(f"{target.name}.{os.getpid()}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(target)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(partial)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with suppress(OSError):
            partial.unlink()
