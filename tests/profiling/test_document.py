"""docs/power.md has every field of a profile's JSON."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from bitmtp_edge.profiling.report import ProfilePoint, ProfileReport, Request

TEXT = (Path(__file__).parents[2] / "docs" / "power.md").read_text(encoding="utf-8")
PART = TEXT.partition("\n## Profile\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(("table", "kind"), [(0, ProfileReport), (1, Request), (2, ProfilePoint)])
def test_every_field(table: int, kind: type) -> None:
    body = PART.split("| field |")[1 + table].partition("\n\n")[0]
    firsts = re.findall(r"^\| (`.*?) \|", body, re.MULTILINE)
    told = [name for first in firsts for name in re.findall(r"`(\w+)`", first)]
    assert sorted(told) == sorted(field.name for field in fields(kind))
