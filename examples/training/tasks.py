"""The five tasks whose held-out items are scored, with replies that show the working.

Every reply ends as the scoring rule wants it: ``#### N``, or the answer alone on the last line.
Needs the package ``reasoning-gym`` (Apache-2.0).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

from worked import Style, evaluate, links, write_out

# The templates of gsm_symbolic that the package itself serves, and the 15 of them that no training
# text is made from: sorted(Random(20250).sample(tasks_ok, 15)).
HELD_OUT_TEMPLATES = (0, 17, 26, 28, 38, 40, 44, 55, 59, 69, 72, 81, 88, 95, 96)
# Templates that share ten words in a row with items of public evaluation sets: left out too.
PUBLIC_TEMPLATES = (4, 30, 52, 70, 80, 85)
_GSM_ENDING = " Give the result as your final answer. Do not include units."
_GSM_LONGEST = 1400  # characters of question and working


@dataclass(frozen=True)
class Item:
    """One problem: what is asked, the reply to learn, and the answer that scoring compares."""

    task: str
    prompt: str
    reply: str
    answer: str


@cache
def gsm_templates() -> dict[int, Callable[[Random, float], dict[str, Any]]]:
    """The generators of gsm_symbolic by number, those that the package serves."""
    from reasoning_gym.arithmetic.gsm_symbolic.gsm_symbolic import (
        GSMSymbolicDataset,
        GSMSymbolicDatasetConfig,
        tasks_ok,
    )

    generators = GSMSymbolicDataset(GSMSymbolicDatasetConfig(seed=0, size=1)).generators
    return {number: generators[number] for number in tasks_ok}


def seen_templates() -> list[int]:
    """Numbers of the templates that training text is made from."""
    left_out = {*HELD_OUT_TEMPLATES, *PUBLIC_TEMPLATES}
    return [number for number in gsm_templates() if number not in left_out]


def tidy_working(text: str) -> str:
    """A worked solution of gsm_symbolic with whole numbers written as such and plain bullets."""
    text = re.sub(r"(\d)\.0+(?![\d])", r"\1", text.replace("•", "-"))
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line)


def gsm_item(rng: Random, template: int) -> Item | None:
    """One worked problem of ``template``; None where its working is wrong, odd or very long."""
    made = gsm_templates()[template](rng, 1.0)
    answer = re.sub(r"\.0+$", "", str(made["answer"]))
    working = tidy_working(made["metadata"]["answer_cot"]).rpartition("####")[0].strip()
    prompt = made["question"] + _GSM_ENDING
    if len(prompt) + len(working) > _GSM_LONGEST or re.search(r"\.\d{4}|\d{8}", prompt + working):
        return None
    if not re.fullmatch(r"\d+(\.\d{1,2})?", answer):
        return None
    written = write_out(working)
    if written is None:
        return None
    return Item("gsm", prompt.strip(), f"{written}\n#### {answer}", answer)


def gsm_items(rng: Random, templates: list[int]) -> Iterator[Item]:
    """An endless stream of worked problems, templates taking turns at random."""
    while True:
        item = gsm_item(rng, rng.choice(templates))
        if item is not None:
            yield item


def _reasoning_gym(name: str, rng: Random, **settings: Any) -> Iterator[dict[str, Any]]:
    """An endless stream of items of one reasoning-gym task."""
    import reasoning_gym

    while True:
        yield from reasoning_gym.create_dataset(
            name, seed=rng.randrange(2**31), size=500, **settings
        )


def arithmetic_items(rng: Random) -> Iterator[Item]:
    """chain_sum (2-4 terms of 1-3 digits), basic_arithmetic (2-3 terms, 1-2 digits), products."""
    kinds = [
        _reasoning_gym("chain_sum", rng, max_terms=4, max_digits=3),
        _reasoning_gym(
            "basic_arithmetic", rng, max_terms=3, max_digits=2, operators=("+", "-", "*"),
            allow_parentheses=False, allow_negation=False,
        ),
        _reasoning_gym("products", rng, max_digits=2),
    ]  # fmt: skip
    style = Style()
    while True:
        made = next(rng.choices(kinds, (5, 2, 3))[0])
        expression = made["metadata"]["expression"]
        values = [Fraction(number) for number in re.findall(r"\d+", expression)]
        operators = re.findall(r"[-+*/]", expression)
        answer = str(evaluate(values, operators))
        if answer != made["answer"]:
            continue  # basic_arithmetic 0.1.25 answers some of "a - b * c" without precedence
        chain = [expression, *links(values, operators, style), answer]
        reply = style.equals.join(chain) + f"\n#### {answer}"
        yield Item("arithmetic", made["question"].strip(), reply, answer)


def legs_items(rng: Random) -> Iterator[Item]:
    """leg_counting with 2-5 kinds of animals, 1-12 of each: one line a kind, then the sum."""
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    style = Style()
    for made in _reasoning_gym("leg_counting", rng, min_animals=2, max_animals=5, max_instances=12):
        lines, legs = [], []
        for animal, count in made["metadata"]["animals"].items():
            legs.append(Fraction(count * ANIMALS[animal]))
            lines.append(f"{animal}: {count} * {ANIMALS[animal]} = {legs[-1]}")
        plus = ["+"] * (len(legs) - 1)
        answer = made["answer"]
        chain = [style.expression(legs, plus), *links(legs, plus, style), answer]
        lines.append("total: " + " = ".join(chain))
        yield Item("legs", made["question"].strip(), "\n".join([*lines, f"#### {answer}"]), answer)


def sorting_items(rng: Random) -> Iterator[Item]:
    """number_sorting with 3-6 whole numbers from -99 to 99; the reply is the list."""
    for made in _reasoning_gym(
        "number_sorting", rng, max_numbers=6, max_decimals=0, min_value=-99, max_value=99
    ):
        yield Item("sorting", made["question"].strip(), made["answer"], made["answer"])


def reversal_items(rng: Random) -> Iterator[Item]:
    """word_sequence_reversal with 3-8 words; the reply is the list."""
    for made in _reasoning_gym("word_sequence_reversal", rng):
        yield Item("reversal", made["question"].strip(), made["answer"], made["answer"])


TASKS: dict[str, Callable[[Random], Iterator[Item]]] = {
    "gsm": lambda rng: gsm_items(rng, seen_templates()),
    "arithmetic": arithmetic_items,
    "legs": legs_items,
    "sorting": sorting_items,
    "reversal": reversal_items,
}


def final_answer(text: str) -> str:
    """The answer that scoring compares, of a reply or of a reference.

    What follows the last ``####``, or the last line where there is none; without commas, without
    the periods at its end.
    """
    _, mark, tail = text.rpartition("####")
    lines = (tail if mark else text).strip().splitlines() or [""]
    line = lines[0] if mark else lines[-1]
    return line.replace(",", "").strip().rstrip(".").strip()
