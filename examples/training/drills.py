"""Arithmetic drills in the very style of the worked problems.

The shapes of the expressions (operators, digits of each operand, currency, blanks) are counted in
worked solutions of the training templates; drills draw a shape by its count and fresh operands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

from documents import chat
from tasks import gsm_templates, seen_templates, tidy_working
from worked import Style, ends_within, equations, evaluate, links

_CONSTANTS = {Fraction(n) for n in (7, 10, 12, 24, 60, 100, 1000)}
_SAMPLES = 60  # solutions looked at, per template


@dataclass(frozen=True)
class Shape:
    """An expression without its numbers: per operand (digits, digits that are not final zeros,
    decimals) or the constant itself, the operators, and the result's digits for a division."""

    operands: tuple[tuple[int, int, int] | Fraction, ...]
    operators: tuple[str, ...]
    quotient: tuple[int, int, int]
    currency: str
    blank: str


def _measure(value: Fraction) -> tuple[int, int, int]:
    decimals = next(places for places in range(7) if ends_within(value, places))
    digits = str(int(value * 10**decimals))
    return len(digits), len(digits.rstrip("0")) or 1, decimals


@cache
def shapes() -> tuple[list[Shape], list[int]]:
    """Every shape seen, with how often."""
    counts: Counter[Shape] = Counter()
    rng = Random(0)
    for template in seen_templates():
        for _ in range(_SAMPLES):
            solution = gsm_templates()[template](rng, 1.0)["metadata"]["answer_cot"]
            for match, equation in equations(tidy_working(solution)):
                usable = all(ends_within(value, 2) for value in equation.values)
                if not usable or equation.percent or not equation.holds():
                    continue
                operands = tuple(
                    value if index and value in _CONSTANTS else _measure(value)
                    for index, value in enumerate(equation.values)
                )
                currency = next((sign for sign in "$€£" if sign in match["left"]), "")
                signs, blank = tuple(equation.operators), equation.style.plus[:-2]
                result = evaluate(equation.values, equation.operators)
                if not ends_within(result, 2):
                    continue
                counts[Shape(operands, signs, _measure(abs(result)), currency, blank)] += 1
    return list(counts), list(counts.values())


def _draw_number(rng: Random, shape: tuple[int, int, int]) -> Fraction:
    digits, significant, decimals = shape
    if decimals == 0 and digits <= 2 and rng.random() < 0.5:
        # Half of the small numbers ignore the final zeros, so that none of them stays unseen.
        significant = digits
    head = rng.randrange(10 ** (significant - 1), 10**significant)
    return Fraction(head * 10 ** (digits - significant), 10**decimals)


def draw(rng: Random) -> tuple[list[Fraction], Shape]:
    """Operands for one shape, such that the result is no negative and ends within two decimals."""
    kinds, counts = shapes()
    shape = rng.choices(kinds, counts)[0]
    for _ in range(12):
        values = [
            part if isinstance(part, Fraction) else _draw_number(rng, part)
            for part in shape.operands
        ]
        if shape.operators in (("/",), ("÷",)):
            values[0] = values[1] * _draw_number(rng, shape.quotient)
        if shape.operators == ("-",) and values[0] < values[1]:
            values.reverse()
        try:
            result = evaluate(values, shape.operators)
        except ZeroDivisionError:
            continue
        if result >= 0 and ends_within(result, 2) and result < 10**7:
            return values, shape
    return draw(rng)


def drill(rng: Random, with_currency: bool = True) -> tuple[str, str]:
    """One expression, and the same continued to its result."""
    values, shape = draw(rng)
    signs = {"x", "×", "÷"} & set(shape.operators)
    style = Style(
        next((sign for sign in "x×" if sign in signs), "*"),
        "÷" if "÷" in signs else "/",
        shape.blank,
    )
    expression = style.expression(values, shape.operators)
    chain = [expression, *links(values, shape.operators, style)]
    result = style.number(evaluate(values, shape.operators))
    if shape.currency and with_currency:
        if not {"*", "/", "x", "×", "÷"} & set(shape.operators):
            amounts = [shape.currency + style.number(value) for value in values]
            joined = amounts[0]
            for sign, amount in zip(shape.operators, amounts[1:], strict=True):
                joined += style.sign(sign) + amount
            chain[0] = joined
        result = shape.currency + result
    return expression, style.equals.join([*chain, result])


_QUESTIONS = (
    "What is {}?", "Calculate {}.", "Work out {}.", "{} =", "How much is {}?", "Compute {}",
    "State the final answer to the following arithmetic problem: {} =",
)  # fmt: skip


def exchange(rng: Random) -> tuple[str, str]:
    """A question for the value of one expression, and the working."""
    expression, solved = drill(rng, with_currency=False)
    return rng.choice(_QUESTIONS).format(expression), solved


def samples(rng: Random) -> Iterator[dict[str, Any]]:
    """Pages of 5-30 equations, and chats of one to six questions, in equal numbers."""
    while True:
        yield {"text": "\n".join(drill(rng)[1] for _ in range(rng.randint(5, 30)))}
        asked = [exchange(rng) for _ in range(rng.randint(1, 6))]
        yield {"messages": [said for turn in asked for said in chat(*turn)["messages"]]}
