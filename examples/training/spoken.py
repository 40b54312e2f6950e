"""Small sums and lists in the words that people use, apart from the scored tasks."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from worked import Style, evaluate, links

_SUMS = {
    "+": (
        "What is {} plus {}?", "How much is {} plus {}?", "Add {} and {}.", "{} plus {}",
        "What is {}+{}?", "{}+{}", "{} + {} = ?", "What is the sum of {} and {}?",
    ),
    "-": (
        "What is {} minus {}?", "How much is {} minus {}?", "{} minus {}", "What is {}-{}?",
        "{}-{}", "{} - {} = ?",
    ),
    "*": (
        "What is {} times {}?", "How much is {} times {}?", "Multiply {} by {}.", "{} times {}",
        "What is {}*{}?", "{}*{}", "{} * {} = ?", "What is the product of {} and {}?",
    ),
}  # fmt: skip
_ASCENDING = (
    "Sort {}.", "Sort these numbers: {}", "Sort the numbers {}.", "Put {} in order.",
    "Sort from smallest to largest: {}", "Put these numbers in ascending order: {}",
)  # fmt: skip
_DESCENDING = (
    "Sort from largest to smallest: {}", "Put these numbers in descending order: {}",
    "Sort {} in descending order.",
)  # fmt: skip
_REVERSED = (
    "Reverse {}.", "Reverse this list: {}", "Reverse the list {}.", "Write {} in reverse order.",
    "Turn this list around: {}",
)  # fmt: skip
_THINGS = (
    "apple", "bird", "boat", "book", "bread", "bridge", "cat", "chair", "cloud", "cup", "dog",
    "door", "farm", "fish", "flower", "garden", "hat", "horse", "house", "key", "lamp", "leaf",
    "milk", "moon", "mouse", "paper", "pear", "pen", "rain", "river", "road", "shoe", "snow",
    "spoon", "star", "stone", "sun", "table", "train", "tree", "water", "window",
)  # fmt: skip


def spoken_sum(rng: Random) -> tuple[str, str]:
    """(question, working) of two whole numbers: up to 99, of products up to 20."""
    sign = rng.choice("+-*")
    most = 20 if sign == "*" else 99
    values = [Fraction(rng.randint(1, most)), Fraction(rng.randint(1, most))]
    if sign == "-":
        values.sort(reverse=True)
    style = Style()
    chain = [style.expression(values, [sign]), *links(values, [sign], style)]
    result = style.number(evaluate(values, [sign]))
    return rng.choice(_SUMS[sign]).format(*values), style.equals.join([*chain, result])


def spoken_list(rng: Random) -> tuple[str, str]:
    """(question, answer): three to five numbers up to 99 to sort, or words to reverse."""
    length = rng.randint(3, 5)
    if rng.random() < 0.4:
        words = rng.sample(_THINGS, length)
        return rng.choice(_REVERSED).format(", ".join(words)), ", ".join(words[::-1])
    numbers = rng.sample(range(1, 100), length)
    down = rng.random() < 0.3
    question = rng.choice(_DESCENDING if down else _ASCENDING)
    ordered = sorted(numbers, reverse=down)
    return question.format(", ".join(map(str, numbers))), ", ".join(map(str, ordered))
