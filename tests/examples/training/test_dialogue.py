"""The everyday parts: one reply a question, and conversations."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import pytest


def test_blocks_of_dialogue_are_filled_in(recipe: Any) -> None:
    lines = ["? What does {0} say? | {0}", "> {0} says", "> {1}.", "& Who says {1}?", "> {0}.",
             "a cow = moo = moo", "a cat = meow"]  # fmt: skip
    found = [(each.questions, each.reply) for each in recipe("dialogue")._block_exchanges(lines)]
    assert found == [
        (("What does a cow say?", "A cow"), "A cow says\nmoo = moo."),
        (("Who says moo = moo?",), "A cow."),
        (("What does a cat say?", "A cat"), "A cat says\nmeow."),
        (("Who says meow?",), "A cat."),
    ]


def test_a_question_has_one_reply_only(recipe: Any) -> None:
    dialogue = recipe("dialogue")
    samples = [*dialogue.talk(), *dialogue.facts()]
    replies: dict[str, str] = {}
    for sample in samples:
        question, reply = (message["content"] for message in sample["messages"])
        asked = " ".join(re.findall(r"[\w+*-]+", question.lower()))
        assert replies.setdefault(asked, reply) == reply, question
        assert "{" not in question + reply and (question + reply).isascii()
    assert len(replies) > 12_000
    assert replies["hello"] == replies["hi there"] == "Hello! How can I help you today?"
    assert replies["who are you"].startswith("I am a small language model")


@pytest.mark.usefixtures("reasoning_gym")
def test_conversations_take_turns(recipe: Any) -> None:
    dialogue = recipe("dialogue")
    made = list(islice(iter(dialogue.Conversations("a")), 200))
    assert made == list(islice(iter(dialogue.Conversations("a")), 200))
    for sample in made:
        roles = [message["role"] for message in sample["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert 2 <= len(roles) // 2 <= 5
    told = [sample for sample in made if "Your name is" in sample["messages"][-1]["content"]]
    assert told
    for sample in told:
        name = sample["messages"][-1]["content"].split()[-1].rstrip(".")
        assert name in sample["messages"][0]["content"]
