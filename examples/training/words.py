"""Words in common use, from WordNet as Debian packages it, and questions about what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from documents import chat

FOLDER = "usr/share/wordnet"
_SPEECH = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
_SENSE_TYPES = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
_UNSUITABLE = re.compile(
    r"obscen|offensive|disparag|vulgar|slur|sexual|erotic|genital|prostitut|rape\b", re.IGNORECASE
)
_WORD = re.compile(r"[a-z][a-z' -]{1,24}")
_LONGEST = 120  # characters of a definition
_SAID_OFTEN = 3  # times that a first sense is tagged; such a word is asked for twice

# WordNet's lexicographer files. A noun of the first kind stands behind "a", of the second alone.
COUNTED = frozenset({5, 6, 8, 17, 18, 20})  # animal, artifact, body, object, person, plant
UNCOUNTED = frozenset({12, 13, 19, 27})  # feeling, food, phenomenon, substance


@dataclass(frozen=True)
class Word:
    """What one word most often means.

    definition: of its first sense, without examples and without a full stop. file: WordNet's
    lexicographer file, by number. count: how often WordNet's tagged texts use that sense.
    """

    written: str
    speech: str
    definition: str
    file: int
    count: int

    @property
    def is_a_kind(self) -> bool:
        """Whether it is a noun for a kind of thing, in the singular."""
        plural = self.written.endswith("s") and not self.written.endswith("ss")
        return self.file in COUNTED | UNCOUNTED and self.written.islower() and not plural

    @property
    def one(self) -> str:
        """One of the kind, or some of it: "a bridge", "bread"."""
        if self.file not in COUNTED:
            return self.written
        return ("an " if self.written[0] in "aeiou" else "a ") + self.written


def first_sense_counts(folder: Path) -> dict[tuple[str, str], int]:
    """(word, part of speech) to how often its first sense is tagged; words never tagged are not
    there."""
    counts: dict[tuple[str, str], int] = {}
    for line in (folder / "cntlist.rev").read_text(encoding="utf-8").splitlines():
        key, sense, count = line.split()
        word, _, rest = key.partition("%")
        if sense == "1":
            counts[word, _SENSE_TYPES[rest[0]]] = int(count)
    return counts


def _first_senses(folder: Path, speech: str) -> Iterator[tuple[str, str]]:
    """Each word of a part of speech, and where its first sense is in the data file."""
    for line in (folder / f"index.{speech}").read_text(encoding="utf-8").splitlines():
        if not line.startswith("  "):
            fields = line.split()
            yield fields[0], fields[-int(fields[2])]


def _senses(folder: Path, speech: str) -> dict[str, tuple[int, list[str], str]]:
    """WordNet's data file: offset to (lexicographer file, words, gloss)."""
    found = {}
    text = (folder / f"data.{speech}").read_text(encoding="utf-8", errors="ignore")
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        fields, _, gloss = line.partition(" | ")
        parts = fields.split()
        words = parts[4 : 4 + 2 * int(parts[3], 16) : 2]
        names = [re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in words]
        found[parts[0]] = (int(parts[1]), names, gloss.strip())
    return found


@cache
def common_words(docs: Path) -> list[Word]:
    """Every word that WordNet's tagged texts use, most frequent first; each once, as the part of
    speech whose first sense they use most."""
    folder = docs / FOLDER
    counts = first_sense_counts(folder)
    best: dict[str, Word] = {}
    for speech, name in _SPEECH.items():
        senses = _senses(folder, speech)
        for lemma, offset in _first_senses(folder, speech):
            count, word = counts.get((lemma, speech), 0), lemma.replace("_", " ")
            if not count or not _WORD.fullmatch(word):
                continue
            file, names, gloss = senses[offset]
            definition = re.split(r'[;:,]?\s*"|;', gloss)[0].strip()
            if not definition or len(definition) > _LONGEST or _UNSUITABLE.search(gloss):
                continue
            written = next((w for w in names if w.lower() == word), word)
            if word not in best or count > best[word].count:
                best[word] = Word(written, name, definition, file, count)
    return sorted(best.values(), key=lambda word: (-word.count, word.written))


_MEANS = (
    'What does "{}" mean?', "Define {}.", "What is the meaning of {}?", "Explain the word {}.",
    'What does the word "{}" mean?', "Give me a definition of {}.",
)  # fmt: skip


def questions(word: Word) -> list[str]:
    """Every question that is answered with the word's definition."""
    asked = [question.format(word.written) for question in _MEANS]
    if word.is_a_kind:
        asked.append(f"What is {word.one}?")
    return asked


def held_out(docs: Path, barred: frozenset[str]) -> frozenset[str]:
    """The common words that any question of ``barred`` asks for."""
    found = (word for word in common_words(docs) if not barred.isdisjoint(questions(word)))
    return frozenset(word.written for word in found)


def meanings(docs: Path, barred: frozenset[str]) -> Iterator[dict[str, Any]]:
    """What each common word means, always in the same words: one question each, two for frequent
    ones. A word is left out if ``barred`` has any question about it."""
    left_out = held_out(docs, barred)
    for word in common_words(docs):
        if word.written in left_out:
            continue
        asked = questions(word)
        rng = Random(f"{word.written}/{word.speech}")
        often = word.count >= _SAID_OFTEN
        for question in rng.sample(asked, 2 if often else 1):
            yield chat(question, f"{word.written} ({word.speech}): {word.definition}.")
