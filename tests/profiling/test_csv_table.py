"""The table as a spreadsheet reads it."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from bitmtp_edge.profiling.csv_table import to_csv
from bitmtp_edge.profiling.report import Failure
from bitmtp_edge.profiling.statistics import estimate

from .samples import point, report, without_joules


def test_what_has_no_figures_has_a_row() -> None:
    failure = Failure(point("25W", "ar").key, "2026-11-30T11:00:00+00:00", "nvpmodel died")
    one = replace(point(), joules_per_token=estimate([0.1, 0.2]))
    text = to_csv(replace(report(one, point("25W")), points=(one,), failed=(failure,)))
    first, second = csv.DictReader(io.StringIO(text, newline=""))
    assert (first["rounds"], first["joules_rounds"]) == ("3", "2")
    told = [second[name] for name in ("power_mode", "policy", "tokens_per_s", "reason")]
    assert told == ["25W", "ar", "", "nvpmodel died"]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\tx"])
def test_names_are_no_formulas(name: str) -> None:
    text = to_csv(report(without_joules(point(name), f"{name}!"), point("15W")))
    first, second = csv.DictReader(io.StringIO(text, newline=""))
    assert (first["power_mode"], first["reason"]) == (f"'{name}", f"'{name}!")
    assert (second["power_mode"], second["policy"]) == ("15W", "ar")
