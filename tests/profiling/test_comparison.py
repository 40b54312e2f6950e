"""A profile beside an older one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.profiling.comparison import check_comparable, compare

from .samples import HYBRID, point, report, without_joules


def test_what_changed_is_marked() -> None:
    old = report(point(), point("15W", "hybrid", (300, 301, 302), **HYBRID))
    faster = point("15W", "hybrid", (330, 331, 332), **HYBRID)
    found = compare(report(point(rates=(99.5, 100.5, 101)), faster, point("25W")), old)
    same, other = found.changes[0], found.changes[1]
    assert [change.changed for change in same] == [False, False, False]
    assert {change.figure: change.changed for change in other} == {
        "tok/s": True,
        "J/token": True,
        "W": False,
    }
    assert other[0].ratio == pytest.approx(331 / 301)
    assert [key.name for key in found.unmatched] == ["25W ar"]
    assert found.elsewhere == []


def test_figures_that_one_has_not() -> None:
    old = report(without_joules(point(), "off"))
    assert [change.figure for change in compare(report(point()), old).changes[0]] == ["tok/s"]


def test_what_else_is_different() -> None:
    old = report(point(), sdk="0.9")
    versions = {"bitmtp-edge": "0.9", "python": "3.10.12", "tokenizers": "0.22"}
    old = replace(old, environment=replace(old.environment, versions=versions))
    assert compare(report(point()), old).elsewhere == [
        "sdk: 0.9 before, 1.0 now",
        "numpy: None before, 1.26.4 now",
        "tokenizers: 0.22 before, None now",
    ]


@pytest.mark.parametrize(
    ("before", "now", "compared"),
    [
        ("VDD_IN", "sum of VDD_GPU, VDD_CPU", False),
        ("sum of A, B, C, D", "sum of A, B, C", False),
        ("sum of A, B", "sum of B, A", True),
    ],
)
def test_joules_of_other_rails_do_not_compare(before: str, now: str, compared: bool) -> None:
    old, new = (report(replace(point(), total_is=total)) for total in (before, now))
    found = compare(new, old)
    figures = [change.figure for change in found.changes[0]]
    assert figures == (["tok/s", "J/token", "W"] if compared else ["tok/s"])
    told = f"power: of {before} before, of {now} now: W and J/token are not compared"
    assert found.elsewhere == ([] if compared else [told])


@pytest.mark.parametrize(
    ("name", "value"), [("bundle", "ef" * 32), ("engine", "cuda"), ("threads", 1), ("device", "x")]
)
def test_another_model_engine_or_device_is_told(name: str, value: object) -> None:
    (told,) = compare(report(point()), report(point(), **{name: value})).elsewhere
    assert told.startswith(f"{name}: {value} before, ")


@pytest.mark.parametrize(
    ("other", "told"),
    [({"prompts": "00"}, "other prompts"), ({"max_new_tokens": 64}, "give --max-new-tokens 64")],
)
def test_other_work_does_not_compare(other: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        check_comparable(report(point(), **other), report(point()).request)
