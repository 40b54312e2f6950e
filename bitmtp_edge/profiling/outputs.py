"""The files of a profile, written anew after every point, so that none is ever half of one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..files import new_file
from .comparison import compare
from .csv_table import COLUMNS, to_csv
from .page import page
from .report import ProfileReport, write_report


@dataclass(frozen=True)
class Outputs:
    """Where to; None: nowhere. old: the profile that the page compares with."""

    json: Path | None
    csv: Path | None
    html: Path | None
    old: ProfileReport | None

    def write(self, report: ProfileReport) -> None:
        """All of them. OSError names the file that could not be written."""
        if self.json is not None:
            write_report(self.json, report)
        self.write_tables(report)

    @property
    def missing(self) -> list[Path]:
        """Those of CSV and HTML that are not there yet."""
        return [path for path in (self.csv, self.html) if path is not None and not path.exists()]

    def write_tables(self, report: ProfileReport) -> None:
        """CSV and HTML; likewise."""
        if self.csv is not None:
            _write(self.csv, to_csv(report))
        if self.html is not None:
            compared = None if self.old is None else compare(report, self.old)
            _write(self.html, page(report, compared))


# How files of ours begin.
_OURS = {
    "json": re.compile(rb'\s*\{\s*"complete"'),
    "csv": re.compile(re.escape(",".join(COLUMNS[:2]).encode())),
    "html": re.compile(rb"<!DOCTYPE html>\n<html.*?: profile</title>", re.DOTALL),
}
_BEGINNING = 1 << 14


def check_targets(
    json: Path | None, csv: Path | None, html: Path | None, inputs: Mapping[str, Path | None]
) -> None:
    """UserError for a file that could not be written after hours of work, or whose loss would hurt:
    another output, one of ``inputs`` (by what they are called) or inside one, or a file that no
    profile wrote."""
    taken = {what: path for what, path in inputs.items() if path is not None}
    for kind, path in (("json", json), ("csv", csv), ("html", html)):
        if path is None:
            continue
        option = f"--{kind} {path}"
        if str(path) in ("-", "."):  # and of no text at all, which is the folder
            raise UserError(f"--{kind} takes the name of a file, which this is not: give one")
        folder = Path(os.path.realpath(path)).parent
        if (path.exists() and not path.is_file()) or not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(
                f"{path} cannot be written: expected a file name in a folder that takes files"
            )
        for what, other in taken.items():
            if _touches(path, other):
                raise UserError(f"{option} would write over {what}: give another file")
        if path.exists() and not _is_ours(path, _OURS[kind]):
            raise UserError(f"{option} is there and no profile wrote it: give another file")
        taken[f"--{kind}"] = path


def _touches(path: Path, other: Path) -> bool:
    """Whether ``path`` is ``other``, or in it."""
    if path.exists() and other.exists() and path.samefile(other):
        return True
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(other))


def _is_ours(path: Path, beginning: re.Pattern[bytes]) -> bool:
    """An empty file is nobody's. OSError where it cannot be read."""
    with path.open("rb") as file:
        text = file.read(_BEGINNING)
    return not text or beginning.match(text) is not None


def _write(path: Path, text: str) -> None:
    with new_file(path) as file:
        file.write(text.encode())
