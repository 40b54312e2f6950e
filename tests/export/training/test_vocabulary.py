"""A tokenizer cut to its first ids gives what merging by the first merges alone gives."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.checkpoints import open_checkpoint
from bitmtp_edge.export.training.vocabulary import prune_tokenizer
from bitmtp_edge.text.tokenizer import byte_characters

from ..tiny_models import tokenizer_json

TEXTS = (
    "the thin man then, in there",
    "The answer is 12 + 30 = 42.\n\nAn hour later\tthey ate",
    "<|im_start|>user\nhe then<|im_end|>\n",
    "na\u00efve caf\u00e9 \u4f60\u597d \U0001f600",
    "def f(x):\n    return [x + 1 for x in range(10)]\n",
    "",
)


def merged(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Byte-pair encoding as it is defined: of all neighbours those learnt first merge first."""
    parts = list(word)
    while True:
        known = [pair for pair in itertools.pairwise(parts) if pair in ranks]
        if not known:
            return parts
        first = min(known, key=ranks.__getitem__)
        joined: list[str] = []
        for part in parts:
            if joined and (joined[-1], part) == first:
                joined[-1] += part
            else:
                joined.append(part)
        parts = joined


def pairs(merges: list[Any]) -> list[tuple[str, str]]:
    split = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
    return [(left, right) for left, right in split]


class SlowEncoder:
    """A tokenizer that knows only merges whose product is among the first ``size`` ids."""

    def __init__(self, full_json: str, size: int) -> None:
        value = json.loads(full_json)
        self.vocabulary = value["model"]["vocab"]
        kept = [p for p in pairs(value["model"]["merges"]) if self.vocabulary["".join(p)] < size]
        self.ranks = {pair: rank for rank, pair in enumerate(kept)}
        self.words = Tokenizer.from_str(full_json).pre_tokenizer
        self.specials = {entry["content"]: entry["id"] for entry in value["added_tokens"]}

    def ids(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            found = [(text.find(token), token) for token in self.specials if token in text]
            at, token = min(found, default=(len(text), ""))
            for word, _ in self.words.pre_tokenize_str(text[:at]):
                ids += [self.vocabulary[part] for part in merged(word, self.ranks)]
            ids += [self.specials[token]] if token else []
            text = text[at + len(token) :]
        return ids


@pytest.mark.parametrize("size", [259, 260, 262, 264, 265, 266, 267])
def test_every_prefix_of_a_small_tokenizer(size: int) -> None:
    cut = Tokenizer.from_str(prune_tokenizer(tokenizer_json(), size))
    slow = SlowEncoder(tokenizer_json(), size)
    assert cut.get_vocab_size() == size
    for text in TEXTS:
        assert cut.encode(text, add_special_tokens=False).ids == slow.ids(text)


@pytest.fixture(scope="module")
def sample_tokenizer(smollm2_gguf: Path) -> str:
    with open_checkpoint(smollm2_gguf) as checkpoint:
        return checkpoint.text.tokenizer_json


@pytest.mark.parametrize("size", [300, 4096, 12288])
def test_the_sample_model(size: int, sample_tokenizer: str) -> None:
    pruned = prune_tokenizer(sample_tokenizer, size)
    cut, slow = Tokenizer.from_str(pruned), SlowEncoder(sample_tokenizer, size)
    draw = random.Random(size)
    characters = "abcdefghij klmnop   qrst.,?!()=+0123456789\nTHE\u00e9\u4f60"
    noise = ["".join(draw.choices(characters, k=60)) for _ in range(20)]
    for text in (*TEXTS, *noise):
        ids = cut.encode(text, add_special_tokens=False).ids
        assert ids == slow.ids(text)
        assert cut.decode(ids, skip_special_tokens=False) == text
    assert prune_tokenizer(pruned, size) == pruned


def test_merges_written_as_pairs() -> None:
    value = json.loads(tokenizer_json())
    value["model"]["merges"] = [merge.split(" ") for merge in value["model"]["merges"]]
    cut = Tokenizer.from_str(prune_tokenizer(json.dumps(value), 262))
    expected = SlowEncoder(tokenizer_json(), 262).ids("the man")
    assert cut.encode("the man", add_special_tokens=False).ids == expected


def changed(**model: Any) -> str:
    value = json.loads(tokenizer_json())
    value["model"] |= model
    return json.dumps(value)


def with_special_at(index: int) -> str:
    value = json.loads(tokenizer_json())
    entry = {**value["added_tokens"][0], "id": index, "content": "<|late|>"}
    value["added_tokens"].append(entry)
    return json.dumps(value)


def out_of_order() -> str:
    """A merge whose parts have later ids than its product."""
    value = json.loads(tokenizer_json())
    vocabulary = value["model"]["vocab"]
    vocabulary["th"], vocabulary["\u0120th"] = vocabulary["\u0120th"], vocabulary["th"]
    value["model"]["merges"].append("\u0120 th")
    return json.dumps(value)


@pytest.mark.parametrize(
    ("tokenizer", "size", "message"),
    [
        (changed(type="Unigram"), 280, "a tokenizer of kind 'Unigram' cannot be cut to 280 ids"),
        (tokenizer_json(), 302, "it has 301 ids, fewer than student.vocabulary = 302"),
        (tokenizer_json(), 258, "258 ids would lose '.', which every text may need"),
        (tokenizer_json(), 2, r"2 ids would lose '<\|im_end\|>'"),
        (with_special_at(300), 300, r"300 ids would lose '<\|late\|>'"),
        (out_of_order(), 260, "its ids are not in the order of its merges"),
    ],
)
def test_what_is_refused(tokenizer: str, size: int, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        prune_tokenizer(tokenizer, size, "model/tokenizer.json")
    assert str(caught.value).startswith("model/tokenizer.json: ")
    assert "\n" not in str(caught.value)


def test_every_byte_is_kept() -> None:
    cut = Tokenizer.from_str(prune_tokenizer(tokenizer_json(), 259))
    assert set(byte_characters().values()) <= set(cut.get_vocab())
