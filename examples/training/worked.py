"""Arithmetic written out in steps that a small model can follow.

A model of 35 M parameters learns sums, and products by one digit. It does not learn to write down
``54*11 = 594`` at one go. So longer expressions are continued as a chain of equalities, each link
of which is one such small step: ``54*11 = 54*10+54*1 = 540+54 = 594``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_UNIT = r"(?: ?(?!x\b)[A-Za-z]+(?:/[A-Za-z]+)?){0,4}"
_TERM = rf"[$€£¥₹]?{_NUMBER}%?{_UNIT}"
_OPERATOR = r"\s*[-+*/x×÷]\s*"
EQUATION = re.compile(
    rf"(?<![\w.,()])(?P<left>{_TERM}(?:{_OPERATOR}{_TERM})+)(?P<equals>\s*=\s*)"
    rf"(?P<result>[$€£¥₹]?{_NUMBER}%?)(?![\d/])"
)
_TOKEN = re.compile(rf"[$€£¥₹]?({_NUMBER})(%?){_UNIT}({_OPERATOR})?")
# Another operator or bracket beside a match means that it is a piece of a longer expression.
_JOINED_LEFT = re.compile(r"[-+*/x×÷(]\s*$|\d/$")
_JOINED_RIGHT = re.compile(rf"{_UNIT}\s*[-+*/x×÷(]\s*[$€£¥₹]?[\d(]")

Operands = list[Fraction]
OPERATION = {"x": "*", "×": "*", "÷": "/"}


def show(value: Fraction, commas: bool = False) -> str:
    """Decimal notation without trailing zeros; needs a value that ends within six decimals."""
    if value.denominator == 1:
        return f"{value.numerator:,}" if commas else str(value.numerator)
    digits = f"{float(value):,.6f}" if commas else f"{float(value):.6f}"
    return digits.rstrip("0")


def ends_within(value: Fraction, decimals: int) -> bool:
    """Whether ``value`` has at most ``decimals`` digits behind the point."""
    return bool(10**decimals % value.denominator == 0)


def apply(left: Fraction, operator: str, right: Fraction) -> Fraction:
    """``left operator right``; ZeroDivisionError as usual."""
    operator = OPERATION.get(operator, operator)
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    return left * right if operator == "*" else left / right


def evaluate(values: Sequence[Fraction], operators: Sequence[str]) -> Fraction:
    """The value of ``values[0] operators[0] values[1] ...`` with the usual precedence."""
    values, operators = list(values), list(operators)
    while operators:
        values, operators = _reduce(values, operators)
    return values[0]


def _reduce(values: Operands, operators: list[str]) -> tuple[Operands, list[str]]:
    first = next((i for i, op in enumerate(operators) if op not in "+-"), 0)
    value = apply(values[first], operators[first], values[first + 1])
    return (
        [*values[:first], value, *values[first + 2 :]],
        [*operators[:first], *operators[first + 1 :]],
    )


class Style:
    """How a text writes expressions: its signs, the blanks around them, commas in thousands."""

    def __init__(self, times: str = "*", over: str = "/", blank: str = " ", commas: bool = False):
        self.times = f"{blank}{times}{blank}"
        self.over = f"{blank}{over}{blank}"
        self.plus = f"{blank}+{blank}"
        self.minus = f"{blank}-{blank}"
        self.equals = f"{blank}={blank}"
        self.commas = commas

    def sign(self, operator: str) -> str:
        operator = OPERATION.get(operator, operator)
        return {"+": self.plus, "-": self.minus, "*": self.times, "/": self.over}[operator]

    def number(self, value: Fraction | int) -> str:
        return show(Fraction(value), self.commas)

    def expression(self, values: Sequence[Fraction], operators: Sequence[str]) -> str:
        text = self.number(values[0])
        for operator, value in zip(operators, values[1:], strict=True):
            text += self.sign(operator) + self.number(value)
        return text


def links(values: Sequence[Fraction], operators: Sequence[str], style: Style) -> list[str]:
    """What stands between an expression and its result in the chain of equalities.

    An empty list means that the result is one step away, or that a step would need a fraction.
    """
    values, operators = list(values), [OPERATION.get(op, op) for op in operators]
    if operators == ["/", "*"] and values[2] % values[1] == 0:
        values = [values[2], values[1], values[0]]  # a/b*c as c/b*a
        if values[2] == 1:
            values, operators = values[:2], ["/"]
        chain = [style.expression(values, operators)]
    else:
        chain = []
    while len(operators) > 1:
        values, operators = _reduce(values, operators)
        if not all(ends_within(value, 2) for value in values):
            return []
        chain.append(style.expression(values, operators))
    if operators == ["*"]:
        return chain + _product(values[0], values[1], style)
    if operators == ["/"]:
        return chain + _quotient(values[0], values[1], style)
    return chain


def _significant(value: int) -> int:
    return len(str(value).rstrip("0"))


def _parts(value: int) -> list[int]:
    """345 as 300, 40 and 5."""
    digits = str(value)
    parts = [int(d) * 10 ** (len(digits) - 1 - i) for i, d in enumerate(digits)]
    return [part for part in parts if part]


def _decimals(value: Fraction) -> int:
    return next(places for places in range(7) if ends_within(value, places))


def _product(left: Fraction, right: Fraction, style: Style) -> list[str]:
    if right == Fraction(1, 4) and left % 4 == 0:
        return [style.number(left) + style.over + "4"]
    if Fraction(1, 2) in (left, right):
        return []
    places = _decimals(left) + _decimals(right)
    a, b = int(left * 10 ** _decimals(left)), int(right * 10 ** _decimals(right))
    inner = _whole_product(a, b, style)
    if not places:
        return inner
    if not inner and max(_significant(a), _significant(b)) < 2:
        return []
    over = style.over + style.number(10**places)
    whole = [style.number(a) + style.times + style.number(b), *inner, style.number(a * b)]
    return [(f"({step})" if style.plus in step else step) + over for step in whole]


def _whole_product(a: int, b: int, style: Style) -> list[str]:
    few, many = sorted((_significant(a), _significant(b)))
    if a == 0 or b == 0 or (few == 1 and many < 3) or 1 in (_leading(a, few), _leading(b, few)):
        return []
    split_left = (_significant(a) > _significant(b)) == (few == 1) and _significant(a) != few
    if few > 1:
        split_left = _significant(a) < _significant(b)
    kept, cut = (b, a) if split_left else (a, b)
    parts = _parts(cut)
    products = [Fraction(kept * part) for part in parts]
    pairs = [(part, kept) if split_left else (kept, part) for part in parts]
    written = style.plus.join(style.number(x) + style.times + style.number(y) for x, y in pairs)
    plus = ["+"] * (len(parts) - 1)
    return [written, style.expression(products, plus), *links(products, plus, style)]


def _leading(value: int, significant: int) -> int:
    """1 for 1, 10, 100, ... when one digit counts, else 0: no such factor needs a step."""
    return int(significant == 1 and str(value).rstrip("0") == "1")


def _quotient(left: Fraction, right: Fraction, style: Style) -> list[str]:
    if right == 0 or left.denominator != 1 or right.denominator != 1 or left % right:
        return []
    divisor, quotient = int(right), int(left / right)
    easy = 3 if _significant(divisor) == 1 else 2
    if _significant(quotient) < easy or str(divisor).rstrip("0") == "1":
        return []
    parts = [Fraction(part) for part in _parts(quotient)]
    plus = ["+"] * (len(parts) - 1)
    products = style.expression([part * divisor for part in parts], plus)
    return [
        f"({products}){style.over}{style.number(divisor)}",
        style.expression(parts, plus),
        *links(parts, plus, style),
    ]


class Equation:
    """One ``expression = result`` found in a text: ``values``, ``operators``, ``style``."""

    def __init__(self, match: re.Match[str]) -> None:
        self.values: Operands = []
        self.operators: list[str] = []
        left = match["left"]
        for token in _TOKEN.finditer(left):
            number, percent, operator = token.groups()
            value = Fraction(number.replace(",", ""))
            self.values.append(value / 100 if percent else value)
            if operator:
                self.operators.append(operator.strip())
        self.percent = "%" in left
        self.result = match["result"]
        signs = {OPERATION.get(op, op): op for op in self.operators}
        self.style = Style(
            signs.get("*", "*"),
            signs.get("/", "/"),
            " " if re.search(r" [-+*/x×÷]|[-+*/x×÷] ", left) else "",
            "," in match[0],
        )

    def holds(self) -> bool:
        """Whether the result is right, to the digits that it is written with."""
        try:
            value = evaluate(self.values, self.operators)
        except ZeroDivisionError:
            return False
        written = Fraction(re.sub(r"[^\d.]", "", self.result))
        places = len(self.result.rstrip("%").partition(".")[2])
        slack = Fraction(1, 2 * 10**places) if places > 1 else Fraction(0)
        scales = (1, 100) if self.percent or self.result.endswith("%") else (1,)
        return any(abs(value * scale - written) <= slack for scale in scales)


def equations(text: str) -> list[tuple[re.Match[str], Equation]]:
    """Every whole equation between plain numbers in ``text``, with where it stands."""
    return [
        (match, Equation(match))
        for match in EQUATION.finditer(text)
        if not _JOINED_LEFT.search(text[: match.start()][-4:])
        and not _JOINED_RIGHT.match(text[match.end() :][:60])
    ]


def write_out(text: str) -> str | None:
    """``text`` with its equations continued as chains; None if one of them is wrong."""
    pieces, done = [], 0
    for match, equation in equations(text):
        if not equation.holds():
            return None
        chain: list[str] = []
        if not (equation.percent and len(equation.operators) > 1):
            chain = links(equation.values, equation.operators, equation.style)
        pieces.append(text[done : match.end("left")])
        pieces.extend(match["equals"] + step for step in chain)
        done = match.end("left")
    return "".join(pieces) + text[done:]
