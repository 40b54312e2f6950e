"""Evaluation tasks, and the one rule by which a reply to them is right.

The final answer of a reply is the line after its last ``####``; without one, its last line that is
not blank. A comma between a digit and three more (``1,234``) is dropped and any other counts as a
space, runs of spaces count as one, and so do none at either end; periods at the end are dropped.
What is left must be the reference, which is read by the same rule, character by character; two
numbers need only be equal (``12.0`` and ``12``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from .errors import UserError
from .records import read_record

ANSWER_MARK = "####"
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)")


@dataclass(frozen=True)
class Item:
    """One prompt, and the reference its reply is compared with; None where it is not scored."""

    prompt: str
    answer: str | None


@dataclass(frozen=True)
class Task:
    """Items of one kind: all have an answer, or none. ``apart``: reported, but in no average."""

    name: str
    apart: bool
    items: tuple[Item, ...]

    @property
    def scored(self) -> bool:
        return self.items[0].answer is not None


@dataclass(frozen=True)
class _Line:
    """A line of a task file."""

    task: str
    prompt: str
    answer: str | None
    apart: bool = False


def read_tasks(paths: Iterable[str | Path], limit: int | None = None) -> list[Task]:
    """Tasks of JSONL files, and of the ``*.jsonl`` of folders; at most the first ``limit`` items of
    each. Those that averages count come first, then scored ones apart, then the rest.

    A line is {"task": name, "prompt": text, "answer": text or null}, and "apart": true for a task
    that no average counts. Blank lines are skipped. Raises UserError for a file that is unreadable,
    empty or malformed, and for a task whose lines do not go together.
    """
    found: dict[str, list[_Line]] = {}
    for path in _files(paths):
        for where, line in _lines(path):
            lines = found.setdefault(line.task, [])
            lines.append(line)
            if (line.answer is None) != (lines[0].answer is None) or line.apart != lines[0].apart:
                raise UserError(
                    f"{where}: task {line.task!r} began with another kind of line: expected an "
                    'answer on all of its lines or on none, and "apart" alike on all'
                )
    tasks = [
        Task(name, lines[0].apart, tuple(Item(each.prompt, each.answer) for each in lines[:limit]))
        for name, lines in found.items()
    ]
    return sorted(tasks, key=lambda task: (not task.scored, task.apart))


def _files(paths: Iterable[str | Path]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise UserError(f"{path} has no .jsonl file: expected task files")
        files += inside
    return list(dict.fromkeys(files))


def _lines(path: Path) -> list[tuple[str, _Line]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None
    found = []
    for number, source in enumerate(text.split("\n"), 1):
        if not source.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(source)
        except (ValueError, RecursionError):
            raise UserError(
                f'{where}: expected an object such as {{"task": "sums", "prompt": "1 + 1?", '
                '"answer": "2"}'
            ) from None
        line = read_record(_Line, value, where)
        if not line.task or not line.prompt:
            raise UserError(f"{where}: task and prompt must not be empty")
        if line.answer is not None and not final_answer(line.answer):
            raise UserError(f"{where}: the answer is blank: expected a text, or null for none")
        found.append((where, line))
    if not found:
        raise UserError(f"{path} holds no tasks: expected one item a line")
    return found


def final_answer(text: str) -> str:
    """The final answer of a reply or of a reference, as they are compared; "" if there is none."""
    _, mark, tail = text.rpartition(ANSWER_MARK)
    lines = [line for line in tail.splitlines() if line.strip()] or [""]
    line = _THOUSANDS.sub("", lines[0] if mark else lines[-1]).replace(",", " ")
    return " ".join(line.split()).rstrip(". ")


def is_right(reply: str, answer: str) -> bool:
    """Whether the final answer of ``reply`` is that of ``answer``."""
    given, expected = final_answer(reply), final_answer(answer)
    if _NUMBER.fullmatch(given) and _NUMBER.fullmatch(expected):
        return Decimal(given) == Decimal(expected)
    return given == expected


def distinct_ngrams(token_ids: Sequence[int], n: int) -> float:
    """Different runs of ``n`` tokens over all such runs, 0 to 1; 1 for fewer than n tokens.

    A text that repeats itself comes near 0.
    """
    runs = [tuple(token_ids[at : at + n]) for at in range(len(token_ids) - n + 1)]
    return len(set(runs)) / len(runs) if runs else 1.0
