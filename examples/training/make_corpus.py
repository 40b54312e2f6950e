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
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import documents
import drills
import overlap
import program_text
import smalltalk
from mixture import MIXTURE, Part
from tasks import TASKS

EVAL = Path(__file__).parent / "eval"
SHARD = 4000  # samples a shard of an endless source
PARTS = 32  # shards of a finite source
OVERLAP_CHECKED = ("gsm", "docs", "code", "wordnet", "codeio")


@dataclass(frozen=True)
class Recipe:
    """What the workers need to know: the seed, the scale, where the documents are."""

    seed: int
    scale: float
    docs: Path


def sampled(item: Any) -> dict[str, Any]:
    """A task's item in the corpus format."""
    return documents.chat(item.prompt, item.reply)


def _part(values: list[Any], index: int, scale: float) -> list[Any]:
    """The ``index``-th of PARTS runs of ``values``, cut to ``scale``."""
    first, last = len(values) * index // PARTS, len(values) * (index + 1) // PARTS
    return values[first : first + ceil((last - first) * scale)]


@cache
def _whole(source: str, docs: Path) -> list[dict[str, Any]]:
    """A source that is read in one go, once in a worker."""
    if source == "wordnet":
        return list(documents.wordnet(docs))
    return list(program_text.codeio() if source == "codeio" else smalltalk.samples())


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
        yield from _part(_whole(source, recipe.docs), index, recipe.scale)


@cache
def _held_out_prompts() -> frozenset[str]:
    """Every prompt of the evaluation files."""
    lines = [line for path in EVAL.glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    return frozenset(json.loads(line)["prompt"].strip() for line in lines)


_blocked: set[int] = set()  # set once, before the workers start


def _is_clean(sample: dict[str, Any], check_overlap: bool) -> bool:
    texts = [sample.get("text", ""), *(m["content"] for m in sample.get("messages", []))]
    if any(text.strip() in _held_out_prompts() for text in texts):
        return False
    return not (check_overlap and any(overlap.grams(text) & _blocked for text in texts))


def shard_lines(job: tuple[str, int, Recipe]) -> tuple[list[str], int]:
    """The finished lines of one shard, and how many samples were dropped as evaluation text."""
    source, index, recipe = job
    rng = Random(f"{recipe.seed}/{source}/{index}")
    lines, dropped = [], 0
    for sample in source_samples(source, index, rng, recipe):
        if _is_clean(sample, source in OVERLAP_CHECKED):
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


def part_lines(part: Part, recipe: Recipe, workers: Workers) -> Iterator[str]:
    """The lines of ``part``, once, without repeated samples; shows a line of progress."""
    wanted = None if part.samples is None else ceil(part.samples * recipe.scale)
    started, taken, dropped = time.monotonic(), 0, 0
    seen: set[bytes] = set()
    shards = workers.shards(part.source, iter(range(PARTS)) if wanted is None else count(), recipe)
    for done, (lines, barred) in enumerate(shards, 1):
        dropped += barred
        for line in lines:
            key = _key(line)
            if taken == wanted or (key in seen and part.source != "smalltalk"):
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
    with temporary.open("w", encoding="utf-8") as file:
        for part in MIXTURE[name]:
            lines: Iterable[str] = part_lines(part, recipe, workers)
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
        if {"docs", "wordnet"} & sources:
            parser.error("--docs: need the folder with usr/share of the unpacked packages")
        options.docs = Path()
    options.out.mkdir(parents=True, exist_ok=True)
    _blocked.update(overlap.blocked_grams(options.bar))
    recipe = Recipe(options.seed, options.scale, options.docs)
    workers = Workers(options.workers)
    with workers.pool:
        for name in names:
            write_file(name, options.out, recipe, workers)


if __name__ == "__main__":
    main()
