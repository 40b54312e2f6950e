"""Meanings of words as questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_common_words_become_questions(recipe: Any, wordnet: Path) -> None:
    words = recipe("words")
    asked = dict[str, list[str]]()
    for sample in words.meanings(wordnet, frozenset()):
        question, reply = (message["content"] for message in sample["messages"])
        asked.setdefault(reply, []).append(question)
    # The use that is most frequent, without its example; frequent words in two questions.
    assert {reply: len(questions) for reply, questions in asked.items()} == {
        "snooze (verb): sleep lightly.": 2,
        "igloo (noun): a house of snow.": 1,
    }
    snooze, igloo = words.common_words(wordnet)
    assert "What is an igloo?" in words.questions(igloo)
    assert not [question for question in words.questions(snooze) if "What is a" in question]


def test_a_word_that_is_held_out_is_asked_for_in_no_way(recipe: Any, wordnet: Path) -> None:
    barred = frozenset({"Define snooze."})
    [sample] = recipe("words").meanings(wordnet, barred)
    assert "igloo" in sample["messages"][0]["content"]
