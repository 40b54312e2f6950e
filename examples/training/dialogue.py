"""Everyday dialogue written for this project: ``everyday/*.txt``, and conversations made of it.

A question has one reply only, whatever words it comes in, so that a small model can learn it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import drills
from documents import chat
from spoken import spoken_list, spoken_sum
from tasks import TASKS, Item

FOLDER = Path(__file__).parent / "everyday"
TALK_FILES = ("talk", "myself")
FACT_FILES = ("world", "calendar", "language", "life")
TURNS = 3000  # conversations of several turns
SPOKEN = 1500  # small sums and lists in words


@dataclass(frozen=True)
class Exchange:
    """One reply, and every question that it answers."""

    questions: tuple[str, ...]
    reply: str


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _block_exchanges(lines: list[str]) -> Iterator[Exchange]:
    """A block: questions behind "?", their reply behind ">" (several lines of it too), more
    questions of the same rows behind "&", and the rows that are filled in, fields between " = "."""
    patterns: list[tuple[list[str], list[str]]] = []
    rows = []
    for line in lines:
        if line[:2] in ("? ", "& "):
            patterns.append((line[2:].split(" | "), []))
        elif line[:2] == "> ":
            patterns[-1][1].append(line[2:])
        else:
            rows.append(line)
    fields = 1 + max((int(number) for number in re.findall(r"{(\d)}", "".join(lines))), default=0)
    for row in rows or [""]:
        values = [value.replace("\\n", "\n") for value in row.split(" = ", fields - 1)]
        for questions, reply in patterns:
            asked = dict.fromkeys(_capital(question.format(*values)) for question in questions)
            yield Exchange(tuple(asked), _capital("\n".join(reply).format(*values)))


@cache
def exchanges(*names: str) -> list[Exchange]:
    """The exchanges of these files of ``everyday``."""
    found = []
    for name in names:
        text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
        for block in re.split(r"\n\s*\n", text):
            lines = [line for line in block.splitlines() if line and not line.startswith("#")]
            if lines:
                found += _block_exchanges(lines)
    return found


_ASKED = (
    "Hello. {}", "Hi! {}", "Please answer: {}", "Question: {}", "I have a question: {}",
    "Quick question: {}", "{} Please.", "OK. {}", "Another question: {}", "Next question: {}",
    "Can you answer this? {}", "Please tell me. {}", "I want to know: {}", "One more: {}",
)  # fmt: skip


def wordings(question: str, rng: Random) -> list[str]:
    """The question as it is, as it is typed in a hurry, and with one or two openings."""
    hurried = question.lower().rstrip("?.!")
    found = [question, hurried, hurried + question[-1]]
    if question.endswith("?") and question.count(" ") > 1 and "," not in question:
        found += [opening.format(question) for opening in rng.sample(_ASKED, 2)]
    return list(dict.fromkeys(found))


def talk() -> Iterator[dict[str, Any]]:
    """Greetings, feelings and questions about the model: every question in every wording."""
    for exchange in exchanges(*TALK_FILES):
        for question in exchange.questions:
            for wording in wordings(question, Random(question)):
                yield chat(wording, exchange.reply)


def facts() -> Iterator[dict[str, Any]]:
    """What is known and what is not, one wording a question; then small sums and lists."""
    for exchange in exchanges(*FACT_FILES):
        for question in exchange.questions:
            rng = Random(question)
            wording = rng.choice([question, *wordings(question, rng)])
            yield chat(wording, exchange.reply)
    rng = Random("spoken")
    for _ in range(SPOKEN):
        yield chat(*rng.choice((spoken_sum, spoken_sum, spoken_list))(rng))


Turn = tuple[str, str]


class Conversations:
    """Conversations of several turns, from one seed: what was said before changes no answer."""

    def __init__(self, seed: str) -> None:
        self.rng = Random(seed)
        self.replies: dict[str, list[str]] = {}
        for exchange in exchanges("talk"):
            self.replies.setdefault(exchange.reply, []).extend(exchange.questions)
        self.tasks = {name: make(Random(f"{seed}/{name}")) for name, make in TASKS.items()}
        self.names = re.findall(r"Nice to meet you, (\w+)!", "\n".join(self.replies))
        self.all = exchanges(*TALK_FILES, *FACT_FILES)

    def said(self, start: str) -> Turn:
        """A question of ``talk.txt`` to the reply that begins with ``start``."""
        reply = next(reply for reply in self.replies if reply.startswith(start))
        return self.rng.choice(self.replies[reply]), reply

    def task(self, *names: str) -> Turn:
        """An item of one of the scored tasks."""
        item: Item = next(self.tasks[self.rng.choice(names)])
        return item.prompt, item.reply

    def problem(self) -> Turn:
        """Anything that the model is good at."""
        if self.rng.random() < 0.4:
            return self.rng.choice((drills.exchange, spoken_sum, spoken_list))(self.rng)
        return self.task("gsm", "gsm", "arithmetic", "arithmetic", "legs", "sorting", "reversal")

    def any(self) -> Turn:
        """Any exchange."""
        exchange = self.rng.choice(self.all)
        return self.rng.choice(exchange.questions), exchange.reply

    def greeted(self) -> list[Turn]:
        """A greeting, something to do, thanks."""
        turns = [self.said(self.rng.choice(("Hello!", "I am well", "Good morning!")))]
        return [*turns, self.rng.choice((self.problem, self.any))(), self.said("You are welcome")]

    def announced(self) -> list[Turn]:
        """A problem that is announced first."""
        if self.rng.random() < 0.2:
            turns = [self.said("Yes. Write the numbers"), self.task("sorting")]
        else:
            turns = [self.said("Yes. Write the problem"), self.task("gsm", "arithmetic", "legs")]
        return [*turns, self.said(self.rng.choice(("You are welcome", "Thank you! I am glad")))]

    def named(self) -> list[Turn]:
        """A name that is told and then asked for."""
        name = self.rng.choice(self.names)
        asked = self.rng.choice(
            ("What is my name?", "Do you know my name?", "Who am I?", "What am I called?")
        )
        between = [self.any()] if self.rng.random() < 0.5 else []
        return [self.said(f"Nice to meet you, {name}!"), *between, (asked, f"Your name is {name}.")]

    def mixed(self) -> list[Turn]:
        """Two to four things that have nothing to do with each other, and perhaps a goodbye."""
        kinds: tuple[Callable[[], Turn], ...] = (self.any, self.any, self.problem)
        turns = [self.rng.choice(kinds)() for _ in range(self.rng.randint(2, 4))]
        return [*turns, self.said("Goodbye!")] if self.rng.random() < 0.4 else turns

    def __iter__(self) -> Iterator[dict[str, Any]]:
        kinds = (self.greeted, self.announced, self.named, self.mixed)
        while True:
            turns = self.rng.choices(kinds, (4, 2, 1, 4))[0]()
            yield {"messages": [said for turn in turns for said in chat(*turn)["messages"]]}


def conversations() -> Iterator[dict[str, Any]]:
    """Conversations of two to five turns."""
    return islice(iter(Conversations("dialogue")), TURNS)
