"""The table as a spreadsheet reads it."""

from __future__ import annotations

import csv
import io

import pytest

from bitmtp_edge.profiling.csv_table import to_csv

from .samples import point, report, without_joules


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\tx"])
def test_names_are_no_formulas(name: str) -> None:
    text = to_csv(report(without_joules(point(name), f"{name}!"), point("15W")))
    first, second = csv.DictReader(io.StringIO(text, newline=""))
    assert (first["power_mode"], first["reason"]) == (f"'{name}", f"'{name}!")
    assert (second["power_mode"], second["policy"]) == ("15W", "ar")
