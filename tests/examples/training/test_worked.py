"""Worked arithmetic: what is written out is right, and what is wrong is refused."""

from __future__ import annotations

import re
from fractions import Fraction
from random import Random
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("so 30 + 7 = 37 spoons.", "so 30 + 7 = 37 spoons."),
        ("54*11 = 594", "54*11 = 54*10+54*1 = 540+54 = 594"),
        ("£40 + £90 + £266 = £396", "£40 + £90 + £266 = 130 + 266 = £396"),
        ("864/24 = 36", "864/24 = (720+144)/24 = 30+6 = 36"),
        ("1200 * 0.3=360", "1200 * 0.3=1200 * 3 / 10=3600 / 10=360"),
        ("72*0.25=18", "72*0.25=72/4=18"),
        ("4 x $20,000 = $80,000", "4 x $20,000 = $80,000"),
        ("2 x 40,000 / 5 = 16,000", "2 x 40,000 / 5 = 80,000 / 5 = 16,000"),
        ("121 / 242 * 100% = 50%", "121 / 242 * 100% = 50%"),
        ("2(76+35) = 222", "2(76+35) = 222"),
        ("12 / 7 = 1.71", "12 / 7 = 1.71"),
    ],
)
def test_equations_are_written_out(recipe: Any, text: str, written: str) -> None:
    assert recipe("worked").write_out(text) == written


@pytest.mark.parametrize("text", ["13*0.5=6", "2 + 2 = 5", "12 / 7 = 1.7142", "9 / 0 = 0"])
def test_a_wrong_equation_is_refused(recipe: Any, text: str) -> None:
    assert recipe("worked").write_out(text) is None


def test_every_link_of_a_chain_has_the_same_value(recipe: Any) -> None:
    worked, rng = recipe("worked"), Random(7)
    chained = 0
    for _ in range(3000):
        values = [Fraction(rng.randrange(1, 10 ** rng.randint(1, 4)))]
        operators = []
        for _ in range(rng.randint(1, 3)):
            operators.append(rng.choice("+-*/"))
            places = rng.choice((1, 1, 10, 100))
            values.append(Fraction(rng.randrange(1, 10 ** rng.randint(1, 3)), places))
        if rng.random() < 0.3:
            values, operators = [values[0] * values[1], values[1]], ["/"]
        expected = worked.evaluate(values, operators)
        for link in worked.links(values, operators, worked.Style()):
            exact = re.sub(r"\d+(\.\d+)?", lambda number: f"Fraction('{number[0]}')", link)
            assert eval(exact) == expected, (values, operators, link)
            chained += 1
    assert chained > 2000
