"""Incremental text equals the text of the whole, however the ids arrive."""

from __future__ import annotations

import itertools
import json
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bitmtp_edge.export.checkpoints import gguf_tokenizer
from bitmtp_edge.text.detokenizer import IncrementalDetokenizer
from bitmtp_edge.text.tokenizer import Tokenizer, byte_characters

SPECIAL = 0
FIRST = 1  # id of the token of byte 0; that of byte b is FIRST + b
WORDS = [b"the ", b"\xe6\xbc", b"\xa2x", b"x\xf0\x9f", b"\x98\x80", b"\xff\xfe", b"a\xe6b"]


def tokenizer_document() -> dict[str, Any]:
    """A byte-level tokenizer.json: one control token, every byte, then WORDS."""
    characters = byte_characters()
    tokens = ["<|im_end|>", *(characters[byte] for byte in range(256))]
    tokens += ["".join(characters[byte] for byte in word) for word in WORDS]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1),
        "tokenizer.ggml.merges": [],
    }
    document: dict[str, Any] = json.loads(gguf_tokenizer.tokenizer_json(metadata))
    return document


TOKENIZER = Tokenizer(json.dumps(tokenizer_document()))
WORD_IDS = range(FIRST + 256, FIRST + 256 + len(WORDS))


def splits(ids: Sequence[int]) -> Iterator[list[Sequence[int]]]:
    """Every way of cutting ids into blocks."""
    for marks in itertools.product([False, True], repeat=max(len(ids) - 1, 0)):
        cuts = [0, *(place + 1 for place, cut in enumerate(marks) if cut), len(ids)]
        yield [ids[start:end] for start, end in itertools.pairwise(cuts)]


def check_every_split(ids: Sequence[int], skip_special: bool = True) -> None:
    whole = TOKENIZER.decode(ids, skip_special)
    for blocks in splits(ids):
        detokenizer = IncrementalDetokenizer(TOKENIZER, skip_special=skip_special)
        text = ""
        for block in blocks:
            text += detokenizer.push(block)
            assert whole.startswith(text)
        assert text + detokenizer.flush() == whole


def test_every_short_sequence_of_awkward_bytes() -> None:
    # One of every role in UTF-8: ASCII, continuation bytes at the edges of what may follow a lead
    # byte, leads of 2 to 4 bytes, and bytes that are never allowed.
    awkward = [FIRST + byte for byte in b"a\x80\x9f\xa0\xc3\xe0\xed\xf0\xf4\xff"]
    for length in range(4):
        for ids in itertools.product([SPECIAL, *awkward], repeat=length):
            check_every_split(ids)


def test_random_long_sequences() -> None:
    rng = random.Random(1)
    text = "né 漢字 😀\n".encode()
    for _ in range(60):
        ids = [SPECIAL, *WORD_IDS, *(FIRST + byte for byte in text)]
        check_every_split(rng.choices(ids, k=9), skip_special=rng.random() < 0.5)


def test_random_bytes_one_by_one() -> None:
    rng = random.Random(2)
    for _ in range(300):
        data = bytes(rng.choices(b"a\x80\xbf\xc2\xe0\xe6\xed\xf0\xf4\x90\xff", k=40))
        detokenizer = IncrementalDetokenizer(TOKENIZER)
        text = "".join(detokenizer.push([FIRST + byte]) for byte in data) + detokenizer.flush()
        assert text == data.decode("utf-8", "replace")


def test_a_character_is_held_until_it_is_whole() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    pushed = [detokenizer.push([FIRST + byte]) for byte in "a漢".encode()]
    assert pushed == ["a", "", "", "漢"]
    assert detokenizer.flush() == ""
    assert detokenizer.offsets == [1, 2, 2, 2]


def test_a_special_token_inside_a_character_does_not_split_it() -> None:
    first, *rest = [FIRST + byte for byte in "漢".encode()]
    check_every_split([first, SPECIAL, *rest])
    assert TOKENIZER.decode([first, SPECIAL, *rest]) == "漢"


def test_offsets_tell_which_tokens_a_cut_keeps() -> None:
    rng = random.Random(3)
    for _ in range(200):
        ids = rng.choices([SPECIAL, *WORD_IDS, FIRST + 0xE6, FIRST + 0x61], k=8)
        detokenizer = IncrementalDetokenizer(TOKENIZER)
        whole = detokenizer.push(ids) + detokenizer.flush()
        assert len(detokenizer.offsets) == len(ids)
        for cut in range(len(whole) + 1):
            kept = bisect_right(detokenizer.offsets, cut)
            text = TOKENIZER.decode(ids[:kept])
            assert len(text) <= cut
            assert whole.startswith(text)
        assert bisect_right(detokenizer.offsets, len(whole)) == len(ids)


@pytest.mark.parametrize("skip_special", [True, False])
def test_a_dropped_leading_space(skip_special: bool) -> None:
    document = tokenizer_document()
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    document["decoder"] = {"type": "Sequence", "decoders": [document["decoder"], strip]}
    tokenizer = Tokenizer(json.dumps(document))
    space, letter = FIRST + 0x20, FIRST + 0x61
    assert tokenizer.decode([space, letter]) == "a"
    for ids in itertools.product([SPECIAL, space, letter], repeat=4):
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip_special)
        text = "".join(detokenizer.push([index]) for index in ids) + detokenizer.flush()
        assert text == tokenizer.decode(ids, skip_special)
