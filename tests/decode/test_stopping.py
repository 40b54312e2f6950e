"""A reply ends at one place, whatever blocks its tokens came in."""

from __future__ import annotations

import codecs
import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from bitmtp_edge.decode.stopping import FinishReason, StopResult, StopRules, StopScanner
from bitmtp_edge.errors import UserError
from bitmtp_edge.export.checkpoints import gguf_tokenizer
from bitmtp_edge.text.tokenizer import Tokenizer, byte_characters

END, SKIPPED = 0, 1
WORDS = [b"a", b"b", b"ab", b"ba", b"aab", b" ", b"\n\n", b".\n", b"\xe6\xbc", b"\xa2", b"\xa2b"]
IDS = {word: 2 + index for index, word in enumerate(WORDS)}


def build() -> Tokenizer:
    characters = byte_characters()
    names = ["".join(characters[byte] for byte in word) for word in WORDS]
    tokens = ["<|im_end|>", "<|skipped|>", *names]
    return Tokenizer(
        gguf_tokenizer.tokenizer_json(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.token_type": [3, 3] + [1] * len(names),
                "tokenizer.ggml.merges": [],
            }
        )
    )


TOKENIZER = build()


def words(*parts: bytes | int) -> list[int]:
    return [part if isinstance(part, int) else IDS[part] for part in parts]


def splits(ids: Sequence[int]) -> Iterator[list[Sequence[int]]]:
    for marks in itertools.product([False, True], repeat=max(len(ids) - 1, 0)):
        cuts = [0, *(place + 1 for place, cut in enumerate(marks) if cut), len(ids)]
        yield [ids[start:end] for start, end in itertools.pairwise(cuts)]


def run(
    blocks: Sequence[Sequence[int]], rules: StopRules, limit: int = 10**6
) -> tuple[str, list[int], FinishReason | None]:
    """Text, ids and reason, with the invariants checked after every block."""
    scanner = StopScanner(TOKENIZER, rules, limit)
    text, kept, result = "", 0, StopResult("", 0, None)
    for block in blocks:
        was_finished, result = result.finished, scanner.push(block)
        text += result.text
        assert text == TOKENIZER.decode(scanner.ids)
        assert len(scanner.ids) == result.kept >= kept
        assert not was_finished or (result.text, result.kept) == ("", kept)
        kept = result.kept
    return text, scanner.ids, result.finish_reason


def expected(
    ids: Sequence[int], rules: StopRules, limit: int
) -> tuple[list[int], FinishReason | None]:
    """The same, said slowly: every prefix of the reply is judged from nothing."""

    def visible(ids: Sequence[int], final: bool) -> str:
        data = b"".join(TOKENIZER.token_bytes(index) for index in ids if index > SKIPPED)
        return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final)

    def cut(reply: Sequence[int], text: str) -> list[int] | None:
        for end in range(len(text) + 1):
            starts = [end - len(s) for s in rules.stop_strings if text[:end].endswith(s)]
            if starts:
                return max(
                    (
                        list(reply[:count])
                        for count in range(len(reply) + 1)
                        if visible(reply[:count], False) == visible(reply[:count], True)
                        and len(visible(reply[:count], True)) <= min(starts)
                    ),
                    key=len,
                )
        return None

    for count, index in enumerate(ids):
        ended = index in rules.stop_ids
        reply = ids[: count + (not ended)]
        stopped = cut(reply, visible(reply, False))
        if stopped is None and (ended or len(reply) == limit):
            stopped = cut(reply, visible(reply, True))
            if stopped is None:
                return list(reply), "stop" if ended else "length"
        if stopped is not None:
            return stopped, "stop"
    return list(ids), None


RULES = [
    StopRules(),
    StopRules(frozenset({END})),
    StopRules(frozenset({END}), ("ab",)),
    StopRules(frozenset({END}), ("aab", "ba")),
    StopRules(frozenset({END}), ("abab", "bb", "b\n")),
    StopRules(frozenset({END}), ("aba", "b")),
    StopRules(frozenset({END}), ("\n\n", "漢b", "漢\n")),
    StopRules(frozenset({END}), ("\ufffd",)),
    StopRules(frozenset({END}), ("a\ufffd", "\ufffdb")),
]


def check(ids: Sequence[int], rules: StopRules, limit: int) -> None:
    kept, reason = expected(ids, rules, limit)
    for blocks in splits(ids):
        text, got, got_reason = run(blocks, rules, limit)
        assert got_reason == reason, (ids, rules, blocks)
        if reason is None:  # nothing ended it: what is held back may still be cut
            assert kept[: len(got)] == got
        else:
            assert got == kept, (ids, rules, blocks)
            assert text == TOKENIZER.decode(kept)


@pytest.mark.parametrize("rules", RULES)
def test_every_split_of_every_short_stream(rules: StopRules) -> None:
    alphabet = words(END, SKIPPED, b"a", b"ab", b"ba", b".\n", b"\xe6\xbc", b"\xa2b")
    for length in range(1, 4):
        for ids in itertools.product(alphabet, repeat=length):
            for limit in (2, 9):
                check(ids, rules, limit)


@pytest.mark.parametrize("rules", RULES)
def test_every_split_of_long_random_streams(rules: StopRules) -> None:
    rng = random.Random(4)
    alphabet = [*range(2 + len(WORDS)), *words(b"a", b"b", b"ab", b"\xe6\xbc", b"\xa2")]
    for _ in range(25):
        ids = rng.choices(alphabet[1:], k=7) + rng.choices(alphabet, k=1)
        check(ids, rules, rng.choice([4, 7, 8, 100]))


@pytest.mark.parametrize("rules", RULES)
def test_long_streams_in_random_blocks(rules: StopRules) -> None:
    rng = random.Random(5)
    for _ in range(20):
        ids = rng.choices(words(SKIPPED, b"a", b"b", b" ", b"\xe6\xbc", b"\xa2"), k=60)
        limit = rng.choice([50, 60, 100])
        kept, reason = expected(ids, rules, limit)
        cuts = sorted(rng.choices(range(61), k=8))
        blocks = [ids[start:end] for start, end in itertools.pairwise([0, *cuts, 60])]
        _, got, got_reason = run(blocks, rules, limit)
        assert got_reason == reason
        assert got == kept if reason else kept[: len(got)] == got


def test_a_stop_token_inside_a_block() -> None:
    ids = words(b"a", b"b", END, b"ab")
    assert run([ids], StopRules(frozenset({END}))) == ("ab", words(b"a", b"b"), "stop")
    # Any id can be one, a word too; a control token that is none is skipped.
    rules = StopRules(frozenset({IDS[b"b"]}))
    assert run([words(b"a", SKIPPED, b"b")], rules) == ("a", words(b"a", SKIPPED), "stop")


def test_the_limit() -> None:
    ids = words(b"a", b"b", b"ab", b"ba")
    assert run([ids], StopRules(), 3) == ("abab", ids[:3], "length")
    assert run([ids], StopRules(), 4) == ("ababba", ids, "length")
    assert run([ids], StopRules(), 5) == ("ababba", ids, None)


def test_a_stop_beats_the_limit_on_the_last_token() -> None:
    ids = words(b"b", b"a", END)
    rules = StopRules(frozenset({END}), ("ba",))
    assert run([ids], rules, 2) == ("", [], "stop")
    # The token after the limit is no longer looked at.
    assert run([ids], StopRules(frozenset({END})), 2) == ("ba", ids[:2], "length")
    assert run([ids], StopRules(frozenset({END})), 3) == ("ba", ids[:2], "stop")


def test_a_token_across_the_cut_is_dropped_whole() -> None:
    ids = words(b"a", b".\n", b"a")
    assert run([ids], StopRules(stop_strings=("\n",))) == ("a", words(b"a"), "stop")
    assert run([ids], StopRules(stop_strings=(".",))) == ("a", words(b"a"), "stop")


def test_what_may_become_a_stop_string_is_held() -> None:
    scanner = StopScanner(TOKENIZER, StopRules(stop_strings=("aab",)), 100)
    pushed = [scanner.push(words(word)) for word in (b"b", b"a", b"a", b"a", b"ba", b"b")]
    assert [result.text for result in pushed] == ["b", "", "", "a", "", ""]
    assert [result.kept for result in pushed] == [1, 1, 1, 2, 2, 2]
    assert pushed[-1].finish_reason == pushed[-2].finish_reason == "stop"
    assert scanner.ids == words(b"b", b"a")


def test_the_stop_string_that_ends_first_wins_then_the_longest() -> None:
    ids = words(b"b", b"a", b"a", b"b", b"a")
    assert run([ids], StopRules(stop_strings=("aaba", "ab"))) == ("ba", ids[:2], "stop")
    assert run([ids], StopRules(stop_strings=("b", "baab", "aab"))) == ("", [], "stop")
    assert run([ids], StopRules(stop_strings=("ab", "aab"))) == ("b", ids[:1], "stop")
    # The same where one token completes both.
    for ids in (words(b"a", b"b", b"a"), words(b"a", b"ba")):
        assert run([ids], StopRules(stop_strings=("aba", "b"))) == ("a", words(b"a"), "stop")


def test_the_name_of_a_control_token_is_a_stop_token() -> None:
    rules = StopRules(stop_strings=("<|im_end|>",))
    assert run([words(b"a", END, b"a")], rules) == ("a", words(b"a"), "stop")


@pytest.mark.parametrize(
    ("stream", "ended_by"),
    [
        (words(b" ", b"b", b"a"), "ba"),
        (words(b" ", END), "<|im_end|>"),
        (words(b" ", b" ", b" "), None),
    ],
)
def test_the_stop_string_that_ended_it_is_told(stream: list[int], ended_by: str | None) -> None:
    rules = StopRules(stop_strings=("ba", "<|im_end|>", "c"))
    scanner = StopScanner(TOKENIZER, rules, 3)
    scanner.push(stream)
    assert scanner.stop_string == ended_by


def test_an_open_character_at_the_end() -> None:
    ids = words(b"a", b"\xe6\xbc")
    assert run([ids], StopRules()) == ("a", ids[:1], None)
    assert run([[*ids, END]], StopRules(frozenset({END}))) == ("a\ufffd", ids, "stop")
    assert run([ids], StopRules(), 2) == ("a\ufffd", ids, "length")


def test_bad_rules() -> None:
    with pytest.raises(UserError, match="a stop string is empty"):
        StopRules(stop_strings=("a", ""))
    with pytest.raises(UserError, match="max_new_tokens is 0: expected at least 1"):
        StopScanner(TOKENIZER, StopRules(), 0)
