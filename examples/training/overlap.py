"""Keeps evaluation text out: texts that share ten words in a row with it are dropped."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GRAM = 10  # words
_WORD = re.compile(r"\w+")


def grams(text: str) -> set[int]:
    """A hash of every run of ten words; upper and lower case, signs and blanks do not count."""
    words = _WORD.findall(text.lower())
    return {hash(tuple(words[i : i + GRAM])) for i in range(len(words) - GRAM + 1)}


def strings(value: Any) -> Iterator[str]:
    """Every string inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)


def file_grams(path: Path) -> set[int]:
    """The runs of ten words in one file: JSON, JSON lines (also gzipped) or plain text."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", errors="ignore") as file:
        text = file.read()
    name = path.name.removesuffix(".gz")
    if name.endswith(".jsonl"):
        values = [json.loads(line) for line in text.splitlines() if line.strip()]
    elif name.endswith(".json"):
        values = [json.loads(text)]
    else:
        values = [text]
    return set().union(*(grams(part) for part in strings(values)), set())


def blocked_grams(paths: list[Path]) -> set[int]:
    """The runs of ten words in all of ``paths``; a folder stands for the files below it."""
    blocked: set[int] = set()
    for path in paths:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            if re.search(r"\.(jsonl?|md|txt)(\.gz)?$", file.name):
                blocked |= file_grams(file)
    return blocked
