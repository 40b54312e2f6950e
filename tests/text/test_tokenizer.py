"""The tokenizer over both families of vocabulary."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.checkpoints import gguf_tokenizer
from bitmtp_edge.text.tokenizer import Tokenizer, byte_characters

DATA = Path(__file__).parents[1] / "data" / "tokenizer_synthetic_cases.json"
METADATA = json.loads(DATA.read_text())["metadata"]


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    return Tokenizer(gguf_tokenizer.tokenizer_json(METADATA))


def added(index: int, content: str, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, "special": special, **flags}


def llama2_json(decoder: dict[str, Any] | None = None, **changes: Any) -> str:
    """A vocabulary built as Llama 2's: specials, 256 byte tokens, then pieces."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", "h", "i", "▁h", "▁hi", "é"]
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    prepend = {"type": "Prepend", "prepend": "▁"}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    document = {
        "version": "1.0",
        "added_tokens": [added(index, tokens[index], True) for index in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]},
        "decoder": decoder or {"type": "Sequence", "decoders": steps},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": ["▁ h", "▁h i"],
        },
    }
    return json.dumps(document | changes)


@pytest.fixture(scope="module")
def metaspace() -> Tokenizer:
    return Tokenizer(llama2_json())


def test_byte_characters_is_a_bijection() -> None:
    characters = byte_characters()
    assert sorted(characters) == list(range(256))
    assert len(set(characters.values())) == 256
    assert (characters[0x20], characters[0x0A], characters[0x41]) == ("Ġ", "Ċ", "A")


def test_byte_level_bytes(byte_level: Tokenizer) -> None:
    def read(token: str) -> bytes:
        index = byte_level.id_of(token)
        assert index is not None
        return byte_level.token_bytes(index)

    assert read("Ġthe") == b" the"
    assert read("æ¼¢") == "漢".encode()
    assert read("ð") == b"\xf0"
    assert read("<|im_end|>") == b"<|im_end|>"
    assert read("<tool>") == b"<tool>"


def test_an_added_token_is_literal_even_if_its_characters_stand_for_bytes() -> None:
    document = json.loads(gguf_tokenizer.tokenizer_json(METADATA))
    vocab = document["model"]["vocab"]
    for token, special in [("é!", False), ("two words", False), ("Ġx", True)]:
        vocab[token] = len(vocab)
        document["added_tokens"].append(added(vocab[token], token, special))
    tokenizer = Tokenizer(json.dumps(document))
    for token in ("é!", "two words", "Ġx"):
        assert tokenizer.token_bytes(vocab[token]) == token.encode()


def test_round_trip(byte_level: Tokenizer, metaspace: Tokenizer) -> None:
    for text in [
        "",
        " ",
        "hello the  world\n\n",
        "漢字 😀 e\u0301",
        "\x00\x1f\x7f",
        "\ufeffx\ufeff",
    ]:
        assert byte_level.decode(byte_level.encode(text)) == text
        assert metaspace.decode(metaspace.encode(text)) == text


def test_metaspace_bytes(metaspace: Tokenizer) -> None:
    ids = metaspace.encode("hi hi\n漢é")
    assert [metaspace.token_bytes(index) for index in ids] == [
        b" hi",
        b" hi",
        b"\n",
        *(bytes([byte]) for byte in "漢".encode()),
        "é".encode(),
    ]
    # Text of a byte token's form is no byte token.
    assert metaspace.decode(metaspace.encode("<0x41>")) == "<0x41>"


def test_a_text_loses_one_leading_space_where_the_family_adds_one(metaspace: Tokenizer) -> None:
    hi = metaspace.id_of("▁hi")
    assert hi is not None
    assert metaspace.drops_leading_space
    assert metaspace.decode([hi, hi]) == "hi hi"
    assert metaspace.decode([1, hi]) == "hi"
    assert metaspace.decode([1, hi], skip_special=False) == "<s> hi"
    assert metaspace.decode([metaspace.encode("  hi")[0], hi]) == " hi"


@pytest.mark.parametrize(("scheme", "drops"), [("always", True), ("first", True), ("never", False)])
def test_a_metaspace_decoder(scheme: str, drops: bool) -> None:
    decoder = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    tokenizer = Tokenizer(llama2_json(decoder))
    assert tokenizer.drops_leading_space is drops
    assert tokenizer.token_bytes(tokenizer.id_of("▁hi") or 0) == b" hi"
    # Without the fallback step these are words, not bytes.
    assert tokenizer.token_bytes(tokenizer.id_of("<0x41>") or 0) == b"<0x41>"


def test_special_tokens_are_parsed_only_on_request(byte_level: Tokenizer) -> None:
    text = "he<|im_end|>he"
    he, end = byte_level.id_of("he"), byte_level.id_of("<|im_end|>")
    assert byte_level.encode(text) == [he, end, he]
    plain = byte_level.encode(text, parse_special=False)
    assert not byte_level.special_ids.intersection(plain)
    assert byte_level.decode(plain) == text
    assert byte_level.decode([he or 0, end or 0]) == "he"
    assert byte_level.decode([he or 0, end or 0], skip_special=False) == "he<|im_end|>"


class Yielding:
    """A tokenizer's backend that lets other threads run right after its switch is set."""

    def __init__(self, backend: Any) -> None:
        self.__dict__["backend"] = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def __setattr__(self, name: str, value: bool) -> None:
        setattr(self.backend, name, value)
        time.sleep(0.001)


def test_threads_do_not_share_the_special_switch() -> None:
    tokenizer = Tokenizer(gguf_tokenizer.tokenizer_json(METADATA))
    text = "<|im_end|>"
    expected = {special: tokenizer.encode(text, parse_special=special) for special in (True, False)}
    assert len(expected[True]) == 1 < len(expected[False])
    tokenizer._backend = Yielding(tokenizer._backend)
    wrong: list[bool] = []

    def work(special: bool) -> None:
        for _ in range(20):
            if tokenizer.encode(text, parse_special=special) != expected[special]:
                wrong.append(special)

    threads = [threading.Thread(target=work, args=(special,)) for special in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_half_of_a_surrogate_pair_is_no_crash(byte_level: Tokenizer) -> None:
    for text in ("a\ud83d", "\ude00b", "\ud83dx\ude00"):
        expected = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
        assert byte_level.encode(text) == byte_level.encode(expected)
    assert byte_level.decode(byte_level.encode("\ud83d\ude00")) == "😀"


def test_ids_are_plain_integers(byte_level: Tokenizer) -> None:
    assert {type(index) for index in byte_level.encode("hello <|im_end|>")} == {int}


def test_invalid_bytes_become_replacement_characters(byte_level: Tokenizer) -> None:
    data = b"a\xe6\xbcb\xff\xf0\x9f\x98"
    characters = byte_characters()
    ids = [byte_level.id_of(characters[byte]) for byte in data]
    known = [index for index in ids if index is not None]
    assert len(known) == len(data)
    assert byte_level.decode(known) == data.decode("utf-8", "replace")


def test_ids_outside_the_vocabulary(byte_level: Tokenizer) -> None:
    assert byte_level.vocab_size == len(METADATA["tokenizer.ggml.tokens"])
    for index in (-1, byte_level.vocab_size):
        with pytest.raises(UserError, match=rf"token id {index} is outside the vocabulary"):
            byte_level.token_bytes(index)
        assert byte_level.token_of(index) is None


def test_a_gap_in_the_vocabulary_is_empty_text() -> None:
    document = json.loads(llama2_json())
    document["model"]["vocab"]["after"] = 1000
    tokenizer = Tokenizer(json.dumps(document))
    assert tokenizer.vocab_size == 1001
    assert tokenizer.token_bytes(999) == b""
    assert tokenizer.token_bytes(1000) == b"after"


def test_saved_truncation_and_padding_are_off() -> None:
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    pad = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<unk>",
    }
    ids = Tokenizer(llama2_json()).encode("hi hi hi")
    assert len(ids) == 3
    assert Tokenizer(llama2_json(truncation=cut)).encode("hi hi hi") == ids
    assert Tokenizer(llama2_json(padding=pad)).encode("hi hi hi") == ids


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "is not a tokenizer.json"),
        (b"\x80", "not UTF-8 at byte 0"),
        (llama2_json({"type": "WordPiece", "prefix": "##", "cleanup": True}).encode(), "WordPiece"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        Tokenizer.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_decoder_and_no_file(tmp_path: Path) -> None:
    document = json.loads(llama2_json())
    document["decoder"] = None
    with pytest.raises(UserError, match="decoder of kind none"):
        Tokenizer(json.dumps(document))
    with pytest.raises(UserError, match=r"cannot read the tokenizer .*: No such file"):
        Tokenizer.load(tmp_path / "tokenizer.json")
