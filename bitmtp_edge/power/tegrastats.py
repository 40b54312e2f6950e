"""NVIDIA's tegrastats: one parser of its lines, from JetPack 5 to 7, and the running command."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from ..errors import describe_os_error
from .child import LineProcess
from .source import BOARD_INPUTS, UNCONNECTED, NoTotal, Reading, Source, SourceError, Where

PERIOD_S = 0.1
POLL_S = PERIOD_S / 4  # asked once a period, two of its lines would at times come between
UPDATE_S = 1.5 * PERIOD_S  # it sleeps for a period and then reads, which takes its time too
SILENT_S = 1.0
_TAIL = 1 << 16

# "VDD_IN 4046mW/4236mW", and of JetPack 7 a third value. The first is the present one. The others
# are the average and the maximum since tegrastats began, which no window of ours has.
_RAIL = re.compile(r"(?<!\S)([A-Za-z]\w*) (\d+)mW/\d+mW(?:/\d+mW)?(?!\S)")
_INPUT = re.compile(rf"(?<!\S)({'|'.join(BOARD_INPUTS)}) (\S+)")


def rails_of(line: str) -> dict[str, float]:
    """Rail name to present mW, in the line's order; empty where the line has no power. A name that
    comes again is numbered."""
    rails: dict[str, float] = {}
    if line.lstrip().startswith("#"):
        return rails
    names: list[str] = []
    for name, milliwatts in _RAIL.findall(line):
        if name.upper() != UNCONNECTED:
            names.append(name)
            times = names.count(name)
            rails[name if times == 1 else f"{name} ({times})"] = float(milliwatts)
    return rails


def _check_input(line: str, rails: dict[str, float]) -> None:
    """NoTotal where the line names the board's input without its power."""
    for name, value in _INPUT.findall(line):
        if name not in rails:
            raise NoTotal(name, f"tegrastats tells {value[:20]}")


class Tegrastats(Source):
    """The newest line of the command, or of ``where.tegrastats``."""

    name = "tegrastats"

    def __init__(self, where: Where) -> None:
        self.poll_s, self.update_s = POLL_S, UPDATE_S
        self._file = where.tegrastats
        self._first_within_s = where.first_within_s
        self._lines: LineProcess | None = None
        if self._file is not None:
            return
        where.must_be_live()
        command = shutil.which("tegrastats")
        if command is None:
            raise SourceError("the command is not here")
        self._lines = LineProcess([command, "--interval", str(round(1000 * PERIOD_S))])

    def read(self) -> Reading:
        if self._lines is None:
            assert self._file is not None
            at, rails = _newest_rails(self._file)
        else:
            at, line = self._lines.newest(self._first_within_s, SILENT_S)
            rails = rails_of(line)
            _check_input(line, rails)
        return self.board_reading(rails, at)

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()


def _newest_rails(path: Path) -> tuple[float, dict[str, float]]:
    """The rails of the last line that has any, and when the file was written: a file that nothing
    writes to has nothing new for a meter, however often it is read."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            file.seek(max(0, status.st_size - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError as error:
        raise SourceError(describe_os_error(error)) from None
    for line in reversed(text.splitlines()):
        if rails := rails_of(line):
            _check_input(line, rails)
            return time.monotonic() - max(0.0, time.time() - status.st_mtime), rails
    raise SourceError(f"{path} has no line with power, such as VDD_IN 4046mW/4236mW")
