"""The files of a profile, written anew after every point, so that none is ever half of one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..files import new_file
from .comparison import compare
from .csv_table import to_csv
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
        if self.csv is not None:
            _write(self.csv, to_csv(report))
        if self.html is not None:
            compared = None if self.old is None else compare(report, self.old)
            _write(self.html, page(report, compared))


def check_targets(*paths: Path | None) -> None:
    """UserError for a file that could not be written after hours of work."""
    for path in paths:
        if path is None:
            continue
        folder = Path(os.path.realpath(path)).parent
        if (path.exists() and not path.is_file()) or not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(
                f"{path} cannot be written: expected a file name in a folder that takes files"
            )


def _write(path: Path, text: str) -> None:
    with new_file(path) as file:
        file.write(text.encode())
