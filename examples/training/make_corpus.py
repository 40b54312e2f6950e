"""Write the training corpus of the shipped model: ``python make_corpus.py OUT [--scale 0.01]``.

The files of ``mixture.py`` as JSON lines, one sample a line: {"messages": [...]} for tasks and
chats, {"text": ...} for plain text. The same seed writes the same files. README.md says where the
inputs come from, and under which licences.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import dialogue
import documents
import drills
import overlap
import program_text
import words
from mixture import MIXTURE, Part
from tasks import TASKS

EVAL = Path(__file__).parent / "eval"
SHARD = 4000  # samples a shard of an endless source
PARTS = 32  # shards of a finite source
OVERLAP_CHECKED = ("gsm", "docs", "code", "codeio", "conversations", "replies", "meanings")
EVERYDAY = ("talk", "facts", "conversations", "replies")


@dataclass(frozen=True)
class Recipe:
    """What the workers need to know: the seed, the scale, where documents and replies are."""

    seed: int
    scale: float
    docs: Path
    replies: Path


def sampled(item: Any) -> dict[str, Any]:
    """A task's item in the corpus format."""
    return documents.chat(item.prompt, item.reply)


def _part(values: list[Any], index: int, scale: float) -> list[Any]:
    """The ``index``-th of PARTS runs of ``values``, cut to ``scale``."""
    first, last = len(values) * index // PARTS, len(values) * (index + 1) // PARTS
    return values[first : first + ceil((last - first) * scale)]


def _replies(recipe: Recipe) -> Iterator[dict[str, Any]]:
    """What make_replies.py has written, without what it says about held-out words."""
    left_out = words.held_out(recipe.docs, _held_out_prompts())
    for line in recipe.replies.read_text(encoding="utf-8").splitlines():
        messages = json.loads(line)["messages"]
        if left_out.isdisjoint(_words(messages[0]["content"])):
            yield {"messages": messages}


@cache
def _whole(source: str, recipe: Recipe) -> list[dict[str, Any]]:
    """A source that is read in one go, once in a worker."""
    sources: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "codeio": program_text.codeio,
        "talk": dialogue.talk,
        "facts": dialogue.facts,
        "conversations": dialogue.conversations,
        "replies": lambda: _replies(recipe),
        "meanings": lambda: words.meanings(recipe.docs, _held_out_prompts()),
    }
    return list(sources[source]())


def _document_samples(recipe: Recipe, index: int) -> Iterator[dict[str, Any]]:
    seen: set[int] = set()
    for path in _part(documents.pages(recipe.docs), index, recipe.scale):
        blocks = documents.fresh(documents.page_blocks(path), seen)
        yield from documents.page_texts(blocks)
        yield from documents.page_chats(blocks)


def source_samples(
    source: str, index: int, rng: Random, recipe: Recipe
) -> Iterator[dict[str, Any]]:
    """The samples of shard ``index`` of ``source``."""
    if source == "drills":
        yield from islice(drills.samples(rng), SHARD)
    elif source in TASKS:
        yield from map(sampled, islice(TASKS[source](rng), SHARD))
    elif source == "docs":
        yield from _document_samples(recipe, index)
    elif source == "code":
        for path in _part(program_text.modules(), index, recipe.scale):
            yield from program_text.module_samples(path, rng)
    else:
        yield from _part(_whole(source, recipe), index, recipe.scale)


@cache
def _held_out_prompts() -> frozenset[str]:
    """Every prompt of the evaluation files."""
    lines = [line for path in EVAL.glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    return frozenset(json.loads(line)["prompt"].strip() for line in lines)


@cache
def _held_out_requests() -> tuple[frozenset[str], ...]:
    """The words of each chat prompt of the evaluation."""
    lines = (EVAL / "chat.jsonl").read_text("utf-8").splitlines()
    return tuple(frozenset(_words(json.loads(line)["prompt"])) for line in lines)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _is_reworded(question: str) -> bool:
    """Whether the question is a held-out request in fewer words: it has most of its words, and no
    other."""
    asked = set(_words(question))
    return any(
        asked <= request and 2 * len(asked) > len(request) for request in _held_out_requests()
    )


_blocked: set[int] = set()  # set once, before the workers start


def _is_clean(sample: dict[str, Any], source: str) -> bool:
    texts = [sample.get("text", ""), *(m["content"] for m in sample.get("messages", []))]
    if any(text.strip() in _held_out_prompts() for text in texts):
        return False
    if source in EVERYDAY and any(map(_is_reworded, texts)):
        return False
    checked = source in OVERLAP_CHECKED
    return not (checked and any(overlap.grams(text) & _blocked for text in texts))


def shard_lines(job: tuple[str, int, Recipe]) -> tuple[list[str], int]:
    """The finished lines of one shard, and how many samples were dropped as evaluation text."""
    source, index, recipe = job
    rng = Random(f"{recipe.seed}/{source}/{index}")
    lines, dropped = [], 0
    for sample in source_samples(source, index, rng, recipe):
        if _is_clean(sample, source):
            lines.append(json.dumps(sample, ensure_ascii=False))
        else:
            dropped += 1
    return lines, dropped


def _key(line: str) -> bytes:
    """What makes a sample: its text, or its first question (templates repeat themselves)."""
    sample = json.loads(line)
    messages = sample.get("messages")
    whole = line if messages is None or len(messages) > 2 else messages[0]["content"]
    return hashlib.blake2b(whole.encode(), digest_size=8).digest()


class Workers:
    """A pool of processes, forked so that they share the barred runs of words and their hashes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pool = multiprocessing.get_context("fork").Pool(number)

    def shards(
        self, source: str, indices: Iterator[int], recipe: Recipe
    ) -> Iterator[tuple[list[str], int]]:
        """``shard_lines`` of each index in order; no more is made ahead than keeps all busy."""
        jobs = ((source, index, recipe) for index in indices)
        begun: deque[Any] = deque()
        while True:
            for job in islice(jobs, self.number + 1 - len(begun)):
                begun.append(self.pool.apply_async(shard_lines, (job,)))
            if not begun:
                return
            yield begun.popleft().get()


def part_lines(part: Part, recipe: Recipe, workers: Workers, seen: set[bytes]) -> Iterator[str]:
    """The lines of ``part``, once, without samples that are in ``seen``, to which it adds its own;
    shows a line of progress."""
    wanted = None if part.samples is None else ceil(part.samples * recipe.scale)
    started, taken, dropped = time.monotonic(), 0, 0
    shards = workers.shards(part.source, iter(range(PARTS)) if wanted is None else count(), recipe)
    for done, (lines, barred) in enumerate(shards, 1):
        dropped += barred
        for line in lines:
            key = _key(line)
            if taken == wanted or key in seen:
                continue
            seen.add(key)
            if taken % part.every == 0:
                yield line
            taken += 1
        print(
            f"\r{part.source}: {done} shards, {taken:,} samples, {dropped} barred, "
            f"{time.monotonic() - started:.0f} s",
            end="", file=sys.stderr, flush=True,
        )  # fmt: skip
        if taken == wanted:
            break
    print(file=sys.stderr)


def write_file(name: str, out: Path, recipe: Recipe, workers: Workers) -> None:
    """Write ``out/NAME.jsonl``, part behind part."""
    temporary = out / f"{name}.jsonl.part"
    seen: set[bytes] = set()
    with temporary.open("w", encoding="utf-8") as file:
        for part in MIXTURE[name]:
            lines: Iterable[str] = part_lines(part, recipe, workers, seen)
            if part.times > 1:
                lines = list(lines) * part.times
            file.writelines(line + "\n" for line in lines)
    temporary.rename(out / f"{name}.jsonl")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="folder for the JSONL files")
    parser.add_argument("--scale", type=float, default=1.0, help="share of it to write, up to 1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--docs", type=Path, help="folder the Debian packages were unpacked into")
    parser.add_argument("--replies", type=Path, help="the file that make_replies.py wrote")
    parser.add_argument(
        "--bar", type=Path, action="append", default=[], metavar="PATH",
        help="evaluation text (file or folder): samples sharing ten words in a row are dropped",
    )  # fmt: skip
    parser.add_argument("--only", action="append", choices=list(MIXTURE), help="one of the files")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    if not 0 < options.scale <= 1:
        parser.error("--scale: need a number above 0, up to 1")
    names = options.only or list(MIXTURE)
    sources = {part.source for name in names for part in MIXTURE[name]}
    if options.docs is None or not (options.docs / "usr/share").is_dir():
        if {"docs", "meanings", "replies"} & sources:
            parser.error("--docs: need the folder with usr/share of the unpacked packages")
        options.docs = Path()
    if "replies" in sources and (options.replies is None or not options.replies.is_file()):
        parser.error("--replies: need the file that make_replies.py writes")
    options.out.mkdir(parents=True, exist_ok=True)
    _blocked.update(overlap.blocked_grams(options.bar))
    recipe = Recipe(options.seed, options.scale, options.docs, options.replies or Path())
    workers = Workers(options.workers)
    with workers.pool:
        for name in names:
            write_file(name, options.out, recipe, workers)


if __name__ == "__main__":
    main()
