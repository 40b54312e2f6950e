"""The corpus: what is barred from it, and how its files are put together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from .conftest import EVAL, TRAINING


def test_replies_about_held_out_words_are_left_out(
    recipe: Any, wordnet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_corpus, chat = recipe("make_corpus"), recipe("documents").chat
    monkeypatch.setattr(make_corpus, "_held_out_prompts", lambda: frozenset({"Define snooze."}))
    asked = [chat("Describe a snooze.", "It is short."), chat("Describe an igloo.", "It is cold.")]
    file = wordnet / "replies.jsonl"
    file.write_text("".join(json.dumps({"number": 1, **each}) + "\n" for each in asked))
    settings = make_corpus.Recipe(1, 1.0, wordnet, file)
    assert list(make_corpus._replies(settings)) == asked[1:]


def test_held_out_prompts_are_barred(recipe: Any) -> None:
    make_corpus, documents = recipe("make_corpus"), recipe("documents")
    line = (EVAL / "legs.jsonl").read_text().splitlines()[0]
    assert not make_corpus._is_clean(documents.chat(json.loads(line)["prompt"], "12"), "legs")
    assert make_corpus._is_clean(documents.chat("Something else", "12"), "legs")


@pytest.mark.parametrize(
    ("question", "clean"),
    [
        ("Explain rain to a child.", False),
        ("What should I pack for a weekend?", False),
        ("Explain snow to a child.", True),
        ("What is a lake?", True),
    ],
)
def test_held_out_requests_in_fewer_words_are_barred(
    recipe: Any, question: str, clean: bool
) -> None:
    sample = recipe("documents").chat(question, "A reply.")
    assert recipe("make_corpus")._is_clean(sample, "replies") == clean


class Shards:
    """Stands in for the workers: shard i holds the texts 3i .. 3i+4, so neighbours share two."""

    def __init__(self) -> None:
        self.made = 0

    def shards(
        self, source: str, indices: Iterator[int], recipe: Any
    ) -> Iterator[tuple[list[str], int]]:
        for index in islice(indices, 50):
            self.made += 1
            yield [json.dumps({"text": f"{source} {3 * index + i}"}) for i in range(5)], 0


def test_an_endless_source_gives_distinct_samples_until_there_are_enough(recipe: Any) -> None:
    make_corpus, workers = recipe("make_corpus"), Shards()
    part, settings = recipe("mixture").Part("legs", 10), make_corpus.Recipe(1, 1.0, Path(), Path())
    lines = list(make_corpus.part_lines(part, settings, workers, set()))
    assert [json.loads(line)["text"] for line in lines] == [f"legs {i}" for i in range(10)]
    assert workers.made == 3


def test_parts_are_thinned_repeated_and_put_in_a_row(
    recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_corpus, mixture = recipe("make_corpus"), recipe("mixture")
    parts = (
        mixture.Part("meanings", every=40),
        mixture.Part("codeio", every=60, times=2),
        mixture.Part("codeio"),
    )
    monkeypatch.setitem(mixture.MIXTURE, "chat", parts)
    make_corpus.write_file("chat", tmp_path, make_corpus.Recipe(1, 1.0, Path(), Path()), Shards())
    written = (tmp_path / "chat.jsonl").read_text(encoding="utf-8").splitlines()
    # 32 shards of a finite source hold the texts 0 .. 97.
    # What an earlier part of the file holds, or has passed over, does not come again.
    expected = [f"meanings {i}" for i in (0, 40, 80)] + [f"codeio {i}" for i in (0, 60)] * 2
    assert [json.loads(line)["text"] for line in written] == expected
    assert [path.name for path in tmp_path.iterdir()] == ["chat.jsonl"]


@pytest.mark.usefixtures("reasoning_gym")
def test_the_same_seed_writes_the_same_file(tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        command = [sys.executable, str(TRAINING / "make_corpus.py"), str(tmp_path / name)]
        options = ["--scale", "0.008", "--only", "legs", "--seed", seed]
        subprocess.run([*command, *options], check=True, capture_output=True)
    a, b, c = ((tmp_path / name / "legs.jsonl").read_text() for name in "abc")
    assert a == b != c
    lines = a.splitlines()
    assert len(lines) == 410  # of 51,196
    assert len({json.loads(line)["messages"][0]["content"] for line in lines}) == 410
