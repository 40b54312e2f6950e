"""A tokenizer.json from the metadata of a GGUF file.

The ids are those of llama.cpp for the same file, which the tests check against recorded ids. Where
llama.cpp and the model's original tokenizer differ, this module sides with llama.cpp:

- a byte for which the vocabulary has no token gives no id, and what stands before and after it is
  never merged (the original may merge across it, or give an unknown token);
- text is not normalised (the original Qwen 2 tokenizer composes characters first);
- ``add_space_prefix`` is accepted and changes no ids: llama.cpp applies it to SentencePiece
  vocabularies alone, and byte-level ones are what is read here;
- a file that names no pre-tokenizer gets ``default``, which is not GPT-2's.

Which characters are letters, digits or punctuation comes from the Unicode tables of the
``tokenizers`` package. Where these are older than llama.cpp's, characters added to Unicode since
may be cut differently: 80 of them for ``smollm``, 13 for ``default`` with tokenizers 0.23.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.checkpoints.text_assets import END_OF_TURN, TextAssets, ordered_stop_ids
from bitmtp_edge.text.tokenizer import byte_characters

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # values of tokenizer.ggml.token_type


def _split(regex: str, behavior: str = "Isolated") -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": use_regex,
    }


def _word_regex(longest_number: int) -> str:
    """The word pattern of Llama 3 and its kin, which differ in how many digits a token takes."""
    return "|".join(
        [
            # Spelt out: a case-insensitive group would also take U+017F for an s.
            r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])",
            r"[^\r\n\p{L}\p{N}]?\p{L}+",
            rf"\p{{N}}{{1,{longest_number}}}",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    )


@dataclass(frozen=True)
class _PreTokenizer:
    steps: tuple[dict[str, Any], ...]
    whole_words: bool = False  # a word that is itself a token skips the merges
    add_bos: bool = False  # where the file does not say


_LLAMA3 = _PreTokenizer((_split(_word_regex(3)), _byte_level(False)), True, True)
_QWEN2 = _PreTokenizer((_split(_word_regex(1)), _byte_level(False)))
_GPT2 = _PreTokenizer((_byte_level(True),))
_SINGLE_DIGITS = _PreTokenizer((_split(r"\p{N}"), _byte_level(True)))
_DEFAULT = _PreTokenizer(
    (
        _split(r"[\p{P}$+<=>^~|]+"),
        _split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
        _split(r"\p{N}+"),
        _split("[0-9][0-9][0-9]"),
        _byte_level(False),
    )
)
PRE_TOKENIZERS = {
    "default": _DEFAULT,
    "deepseek-r1-qwen": _QWEN2,
    "gpt-2": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
}
"""By the name that ``tokenizer.ggml.pre`` gives."""


def text_assets(metadata: Mapping[str, Any]) -> TextAssets:
    """Tokenizer, chat template, beginning and stop ids of a GGUF file.

    ``metadata`` maps the file's keys to plain Python values (str, int, bool, list). Raises
    UserError if a key is missing or has a value that this SDK does not support.
    """
    vocabulary = _Vocabulary.read(metadata)
    declared = (
        vocabulary.id_under(metadata, f"tokenizer.ggml.{name}_token_id")
        for name in ("eos", "eot", "eom")
    )
    template = metadata.get("tokenizer.chat_template")
    return TextAssets(
        tokenizer_json=tokenizer_json(metadata),
        chat_template=None if template is None else str(template),
        bos_id=vocabulary.id_under(metadata, "tokenizer.ggml.bos_token_id"),
        stop_ids=ordered_stop_ids(
            (index for index in declared if index is not None),
            (index for index, token in enumerate(vocabulary.tokens) if token in END_OF_TURN),
        ),
    )


def tokenizer_json(metadata: Mapping[str, Any]) -> str:
    """The text of a tokenizer.json that encodes as llama.cpp does. Errors as ``text_assets``."""
    vocabulary = _Vocabulary.read(metadata)
    pre = _pre_tokenizer(metadata)
    steps = list(pre.steps)
    missing = sorted(set(byte_characters().values()) - vocabulary.ids.keys())
    if missing:
        # Removing it only here, after the words are cut, keeps its neighbours from merging.
        escaped = "".join(f"\\x{{{ord(character):04X}}}" for character in missing)
        steps.append(_split(f"[{escaped}]", "Removed"))
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": _bos_processor(metadata, vocabulary, pre),
        "decoder": _byte_level(True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.whole_words,
            "vocab": vocabulary.ids,
            "merges": _merges(metadata, vocabulary),
        },
    }
    return json.dumps(document, ensure_ascii=False)


@dataclass(frozen=True)
class _Vocabulary:
    tokens: list[str]
    types: Sequence[int]
    ids: dict[str, int]

    @staticmethod
    def read(metadata: Mapping[str, Any]) -> _Vocabulary:
        model = metadata.get("tokenizer.ggml.model")
        if model != "gpt2":
            raise UserError(
                f"tokenizer.ggml.model is {model!r}: expected 'gpt2' (byte-level BPE); "
                "export from the Hugging Face folder, which has a tokenizer.json"
            )
        # llama.cpp names empty tokens so too: ids must stay where they are.
        tokens = [
            token or f"[EMPTY_{index}]"
            for index, token in enumerate(_list(metadata, "tokenizer.ggml.tokens"))
        ]
        types = _list(metadata, "tokenizer.ggml.token_type")
        if len(types) != len(tokens):
            raise UserError(
                f"tokenizer.ggml.token_type has {len(types)} entries, tokenizer.ggml.tokens "
                f"{len(tokens)}: expected as many; the GGUF file is damaged"
            )
        ids = {token: index for index, token in enumerate(tokens)}
        if len(ids) != len(tokens):
            twice = next(token for index, token in enumerate(tokens) if ids[token] != index)
            raise UserError(
                f"tokenizer.ggml.tokens has {twice!r} twice: expected each token once; "
                "the GGUF file is damaged"
            )
        return _Vocabulary(tokens, types, ids)

    def added_tokens(self) -> list[dict[str, Any]]:
        """Tokens found in the text before anything else; special ones only on request."""
        special = [
            kind in (_UNKNOWN, _CONTROL) or token in END_OF_TURN
            for token, kind in zip(self.tokens, self.types, strict=True)
        ]
        return [
            {
                "id": index,
                "content": self.tokens[index],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": special[index],
            }
            for index, kind in enumerate(self.types)
            if special[index] or kind == _USER_DEFINED
        ]

    def id_under(self, metadata: Mapping[str, Any], key: str) -> int | None:
        index = metadata.get(key)
        if index is None:
            return None
        if not 0 <= index < len(self.tokens):
            raise UserError(
                f"{key} is {index}: expected an id below {len(self.tokens)}; "
                "the GGUF file is damaged"
            )
        return int(index)


def _list(metadata: Mapping[str, Any], key: str) -> list[Any]:
    value = metadata.get(key)
    if not isinstance(value, list):
        raise UserError(
            f"the GGUF file has no list {key}: expected a model file with its tokenizer; "
            "convert it again, or export from the Hugging Face folder"
        )
    return value


def _pre_tokenizer(metadata: Mapping[str, Any]) -> _PreTokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    known = PRE_TOKENIZERS.get(name)
    if known is None:
        raise UserError(
            f"unknown pre-tokenizer {name!r} in tokenizer.ggml.pre: expected one of "
            f"{', '.join(PRE_TOKENIZERS)}; export from the Hugging Face folder"
        )
    return known


def _merges(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> list[str]:
    merges: dict[str, None] = {}  # the first rank of a repeated merge counts
    for rank, merge in enumerate(_list(metadata, "tokenizer.ggml.merges")):
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= vocabulary.ids.keys():
            raise UserError(
                f"tokenizer.ggml.merges has {merge!r} at {rank}, which joins or makes a token that "
                "the vocabulary lacks; the GGUF file is damaged"
            )
        merges[merge] = None
    return list(merges)


def _bos_processor(
    metadata: Mapping[str, Any], vocabulary: _Vocabulary, pre: _PreTokenizer
) -> dict[str, Any] | None:
    """What puts the beginning-of-text token before a raw prompt, if the model wants one."""
    if not metadata.get("tokenizer.ggml.add_bos_token", pre.add_bos):
        return None
    index = vocabulary.id_under(metadata, "tokenizer.ggml.bos_token_id")
    if index is None:
        raise UserError(
            "the GGUF file asks for a beginning-of-text token and names none: expected "
            "tokenizer.ggml.bos_token_id; convert it again"
        )
    token = vocabulary.tokens[index]
    bos = {"SpecialToken": {"id": token, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [bos, first],
        "pair": [bos, first, second],
        "special_tokens": {token: {"id": token, "ids": [index], "tokens": [token]}},
    }
