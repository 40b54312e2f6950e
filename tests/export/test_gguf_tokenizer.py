"""Tokenizers built from GGUF metadata against the ids that llama.cpp gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.checkpoints import gguf_tokenizer
from bitmtp_edge.text.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data"
SYNTHETIC = json.loads((DATA / "tokenizer_synthetic_cases.json").read_text())
SMOLLM2 = json.loads((DATA / "tokenizer_smollm2_cases.json").read_text())
TOKENS = SYNTHETIC["metadata"]["tokenizer.ggml.tokens"]
END = "<|im_end|>"


def metadata(**changes: Any) -> dict[str, Any]:
    """The synthetic file's metadata, ``changes`` under tokenizer.ggml; None leaves a key out."""
    changed = SYNTHETIC["metadata"] | {f"tokenizer.ggml.{key}": changes[key] for key in changes}
    return {key: value for key, value in changed.items() if value is not None}


def tokenizer(**changes: Any) -> Tokenizer:
    return Tokenizer(gguf_tokenizer.tokenizer_json(metadata(**changes)))


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2", "gpt-2", "default"])
def test_ids_equal_the_reference(pre: str) -> None:
    built = tokenizer(pre=pre)
    cases = [case for case in SYNTHETIC["cases"] if case["pre"] == pre]
    assert len(cases) > 80
    for case in cases:
        text = case["text"]
        assert built.encode(text) == case["special"], (text, "special")
        assert built.encode(text, parse_special=False) == case["plain"], (text, "plain")
        if pre == "llama-bpe":  # the one that adds the token unless the file forbids it
            assert built.encode(text, add_special=True) == case["bos"], (text, "bos")


def test_smollm2_ids_equal_the_reference(smollm2_gguf: Path) -> None:
    gguf = pytest.importorskip("gguf")
    fields = gguf.GGUFReader(smollm2_gguf).fields
    keys = [key for key in fields if key.startswith("tokenizer.")]
    assets = gguf_tokenizer.text_assets({key: fields[key].contents() for key in keys})
    assert (assets.bos_id, assets.stop_ids) == (1, [2, 0])
    assert assets.chat_template is not None and "<|im_start|>" in assets.chat_template
    built = Tokenizer(assets.tokenizer_json)
    assert built.vocab_size == 49152
    for case in SMOLLM2["cases"]:
        text = case["text"]
        assert built.encode(text) == case["special"], (text, "special")
        assert built.encode(text, parse_special=False) == case["plain"], (text, "plain")


def test_a_byte_without_a_token_gives_no_id_and_no_merge() -> None:
    built = tokenizer()
    he = built.id_of("he")
    assert built.encode("he") == [he]
    assert built.encode("!") == []
    assert built.encode("->") == [built.id_of("->")]
    assert built.encode("-!>") == [built.id_of("-"), built.id_of(">")]
    assert built.encode("he!\x04") == [he]


def test_a_vocabulary_of_all_bytes_loses_none() -> None:
    tokens = [*TOKENS, "!", "Ą", "À", "ñ"]
    built = tokenizer(tokens=tokens, token_type=[1] * len(tokens))
    assert built.decode(built.encode("h!e\x04\U00040000")) == "h!e\x04\U00040000"


def test_special_and_user_defined_tokens() -> None:
    built = tokenizer()
    end = built.id_of(END)
    assert built.encode(f"a{END}") == [built.id_of("a"), end]
    assert end not in built.encode(f"a{END}", parse_special=False)
    # A user-defined token is part of ordinary text.
    assert built.encode("<tool>", parse_special=False) == [built.id_of("<tool>")]
    assert built.id_of("<tool>") not in built.special_ids
    # One that ends a turn is a control token whatever type the file gives it.
    assert built.id_of("<|eot_id|>") in built.special_ids
    # An empty token keeps its place.
    empty = TOKENS.index("")
    assert built.token_of(empty) == f"[EMPTY_{empty}]"


@pytest.mark.parametrize(
    ("pre", "add_bos_token", "expected"),
    [
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("smollm", None, False),
        ("smollm", True, True),
    ],
)
def test_beginning_of_text(pre: str, add_bos_token: bool | None, expected: bool) -> None:
    built = tokenizer(pre=pre, add_bos_token=add_bos_token)
    plain = built.encode("he")
    assert built.encode("he", add_special=True) == ([1, *plain] if expected else plain)


def test_a_space_prefix_is_not_for_byte_level_vocabularies() -> None:
    with_prefix, without = tokenizer(add_space_prefix=True), tokenizer(add_space_prefix=False)
    assert with_prefix.encode("hello") == without.encode("hello") == [without.id_of("hello")]


def test_no_pre_tokenizer_means_the_reference_s_default() -> None:
    unnamed, default = tokenizer(pre=None), tokenizer(pre="default")
    assert unnamed.encode("12345 a+b") == default.encode("12345 a+b")
    assert unnamed.encode("12345") != tokenizer(pre="smollm").encode("12345")


def test_stop_ids() -> None:
    ids = {token: index for index, token in enumerate(TOKENS)}
    by_name = [ids["<|endoftext|>"], ids[END], ids["<|eot_id|>"]]
    assert gguf_tokenizer.text_assets(metadata(eos_token_id=None)).stop_ids == by_name
    declared = metadata(eos_token_id=ids["ab"], eot_token_id=ids[END], eom_token_id=ids["aba"])
    expected = [ids["ab"], ids[END], ids["aba"], ids["<|endoftext|>"], ids["<|eot_id|>"]]
    assert gguf_tokenizer.text_assets(declared).stop_ids == expected


def test_a_repeated_merge_keeps_its_first_rank() -> None:
    merges = SYNTHETIC["metadata"]["tokenizer.ggml.merges"]
    assert tokenizer(merges=[*merges, merges[0]]).encode("the hello") == tokenizer().encode(
        "the hello"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, r"tokenizer.ggml.model is 'llama': expected 'gpt2'"),
        ({"model": None}, r"tokenizer.ggml.model is None"),
        ({"pre": "tekken"}, r"unknown pre-tokenizer 'tekken'.*llama-bpe.*qwen2.*smollm"),
        ({"tokens": None}, r"no list tokenizer.ggml.tokens"),
        ({"merges": None}, r"no list tokenizer.ggml.merges"),
        ({"token_type": [1]}, r"token_type has 1 entries"),
        ({"tokens": [*TOKENS[:-1], "ab"]}, r"has 'ab' twice"),
        ({"merges": ["a c"]}, r"'a c' at 0"),
        ({"merges": ["a"]}, r"'a' at 0"),
        ({"eos_token_id": 10**6}, r"eos_token_id is 1000000: expected an id below"),
        ({"add_bos_token": True, "bos_token_id": None}, r"names none"),
    ],
)
def test_damaged_metadata(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        gguf_tokenizer.text_assets(metadata(**changes))
    assert "\n" not in str(caught.value)
