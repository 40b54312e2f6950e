"""The page: well-formed, alone, escaped, and with marks that colour does not have to tell apart."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from bitmtp_edge.profiling.comparison import compare
from bitmtp_edge.profiling.page import page
from bitmtp_edge.profiling.pareto import Looks, front
from bitmtp_edge.profiling.report import Failure, ProfileReport

from .samples import HYBRID, point, report, without_joules

MODES = [
    point("10W", "ar", (99, 100, 101), 7.0),
    point("10W", "hybrid", (297, 300, 303), 7.0, **HYBRID),
    point("MAXN_SUPER", "ar", (158, 160, 162), 18.0),
    point("MAXN_SUPER", "hybrid", (475, 480, 485), 18.0, **HYBRID),
]
WHOLE = report(*MODES)


def parsed(text: str) -> ElementTree.Element:
    """The tree; fails where the page is not well-formed."""
    doctype, _, rest = text.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    return ElementTree.fromstring(rest)


def shown(text: str) -> str:
    return " ".join("".join(parsed(text).itertext()).split())


class Strict(HTMLParser):
    """As a browser reads it: tags close in order, and only drawings have tags without an end."""

    EMPTY = ("meta", "line", "rect", "circle", "polygon", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.EMPTY
        assert ("svg" in self.open) is (tag != "meta")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    "whole",
    [
        WHOLE,
        report(MODES[0]),
        report(),
        report(*(without_joules(each, "no sensor") for each in MODES)),
        report(without_joules(MODES[0], "a gap"), MODES[1]),
        report(*(point("15W", f"p{number}") for number in range(12))),
        report(point(rates=(100.0,))),
    ],
    ids=("all", "one", "none", "no joules", "some joules", "many", "one round"),
)
def test_it_is_well_formed_and_needs_nothing_else(whole: ProfileReport) -> None:
    text = page(whole)
    parsed(text)
    strict = Strict()
    strict.feed(text)
    assert strict.open == []
    assert not re.search(r"https?:|//|src=|href=|@import|<script|<link", text)
    assert set(re.findall(r"url\((.*?)\)", text)) <= {"#hatch"}
    assert "nan" not in text and "None" not in text


def test_it_has_all_figures_and_what_repeats_them() -> None:
    told = shown(page(WHOLE))
    for each in (
        *("10W ar", "MAXN_SUPER hybrid D=8 tau=0.9 m=2"),
        *("100.0 ± 2.5%", "0.07", "612 to 918", "4"),
        *("bitmtp-edge profile bundle --prompts prompts.txt", "ab" * 32, "cd" * 32),
        *("Linux 5.15 aarch64", "numpy 1.26.4", "ina3221: VDD_IN", "without a seed", "2.0%"),
    ):
        assert each in told, each


def test_without_joules_it_says_why_and_shows_rates() -> None:
    text = page(report(*(without_joules(each, "no power source works here") for each in MODES)))
    told = shown(text)
    assert "No joules: no power source works here." in told
    assert "J/token against" not in text and "Power over time" not in told
    assert text.count('class="mark"') >= len(MODES)


def test_names_from_outside_are_escaped() -> None:
    evil = '<b>"x"</b>&\x1b[31m'
    whole = report(point(evil, "ar"))
    whole = replace(whole, model=evil, command=evil, prompt_file=evil, bundle=evil)
    text = page(whole, compare(whole, whole))
    assert "<b>" not in text and "\x1b" not in text
    assert '<b>"x"</b>&?[31m' in shown(text)


def test_unfinished_is_told() -> None:
    whole = replace(WHOLE, complete=False, points=WHOLE.points[:1])
    assert "Unfinished: 1 of 4 points" in shown(page(whole))


def test_the_time_that_it_took_runs_forwards() -> None:
    """Tables have the order asked for, points were measured in another."""
    later, earlier = (replace(point(), date=f"2026-11-30T1{h}:00:00+00:00") for h in (2, 1))
    earlier = replace(earlier, key=point("25W").key)
    told = shown(page(report(later, earlier)))
    first, last = "until 2026-11-30T11:00:00+00:00", "until 2026-11-30T12:00:00+00:00"
    assert f"the first point {first}, the last {last}; " in told


def test_what_has_no_figures_and_what_has_doubtful_ones() -> None:
    failure = Failure(MODES[3].key, "2026-11-30T11:00:00+00:00", "nvpmodel <died>")
    partial = replace(MODES[0], reason="joules are of 2 of 3 rounds: a gap", step_spread=3.0)
    whole = replace(report(*MODES), points=(partial, *MODES[1:3]), failed=(failure,))
    told = shown(page(whole))
    assert "MAXN_SUPER hybrid D=8 tau=0.9 m=2: no figures: nvpmodel <died>." in told
    assert "10W ar: joules are of 2 of 3 rounds: a gap." in told and "No joules" not in told
    assert "10W ar: runs of one step differ 3.0 times" in told


def test_changes_are_marked() -> None:
    old = report(*(replace(each, tokens_per_s=MODES[0].tokens_per_s) for each in MODES))
    told = shown(page(WHOLE, compare(WHOLE, old)))
    assert "The 95 % intervals" not in told  # the rule begins its sentence
    assert "Changed: the 95 % intervals of both means do not touch" in told
    assert re.search(r"MAXN_SUPER ar ?tok/s ?100 ?160 ?\+60.0% changed", told)


def test_shape_and_colour() -> None:
    """A shape is a policy's and a colour a mode's; of one mode both are the policy's."""
    looks = Looks(MODES)
    assert [looks.of(each) for each in MODES] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [Looks(MODES[:2]).of(each) for each in MODES[:2]] == [(0, 0), (1, 1)]


def test_the_front() -> None:
    slow, fast = point("a", rates=(50, 50, 50), watts=2), point("b", rates=(90, 90, 90), watts=9)
    beaten = point("c", rates=(80, 80, 80), watts=9)
    assert [each.key.power_mode for each in front([fast, beaten, slow])] == ["a", "b"]
