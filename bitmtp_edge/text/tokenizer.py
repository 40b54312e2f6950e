"""Token ids from text and back, over a bundle's tokenizer.json.

Two families of vocabulary are understood, told apart by the decoder the file names:

- *byte-level* (GPT-2, Llama 3, Qwen, SmolLM): every character of a token stands for one byte;
- *metaspace* (Llama 2, Mistral): U+2581 stands for a space, and a byte that no token covers is
  written as a token such as ``<0x0A>``.

Text is always the UTF-8 decoding of the tokens' joined bytes, so that a piece of text does not
depend on how a reply was cut into tokens or steps.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from bitmtp_edge.errors import UserError

_METASPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_characters() -> dict[int, str]:
    """The character that stands for each byte 0..255 in a byte-level vocabulary.

    Printable Latin-1 bytes stand for themselves; the other 68, in ascending order, take the
    characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in sorted(printable)} | {
        byte: chr(0x100 + index) for index, byte in enumerate(others)
    }


_BYTE_OF_CHARACTER = {character: byte for byte, character in byte_characters().items()}


class Tokenizer:
    """A vocabulary with its encoder and decoder. Safe to share between threads."""

    def __init__(self, tokenizer_json: str, origin: str = "tokenizer.json") -> None:
        """Build from the text of a tokenizer.json; ``origin`` names it in errors.

        Raises UserError if the text is no tokenizer or its decoder is of neither family.
        """
        try:
            self._backend = Backend.from_str(tokenizer_json)
        except Exception as error:  # the library raises bare Exception
            raise UserError(
                f"{origin} is not a tokenizer.json: {_one_line(error)}; export the bundle again"
            ) from error
        # A file saved during training may cut or pad what it encodes.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._lock = threading.Lock()
        self._added = self._backend.get_added_tokens_decoder()
        self._special_ids = frozenset(
            index for index, token in self._added.items() if token.special
        )
        self._bytes: dict[int, bytes] = {}

        steps = _decoder_steps(self._backend)
        kinds = {step["type"] for step in steps}
        self._byte_level = "ByteLevel" in kinds
        self._byte_tokens = "ByteFallback" in kinds
        if not self._byte_level and not any(_restores_spaces(step) for step in steps):
            raise UserError(
                f"{origin} has a decoder of kind {'+'.join(sorted(kinds)) or 'none'}: "
                "expected a byte-level or metaspace vocabulary; use a model that has one"
            )
        self._drops_leading_space = any(_drops_leading_space(step) for step in steps)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a tokenizer.json. Raises UserError if it cannot be read or is no tokenizer."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot read the tokenizer {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} is not a tokenizer.json: not UTF-8 at byte {error.start}"
            ) from error
        return cls(text, str(path))

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def learnt_size(self) -> int:
        """As :attr:`vocab_size`, without the tokens that were added to the learnt ones."""
        added = {token.content for token in self._added.values()}
        learnt = self._backend.get_vocab(with_added_tokens=False).items()
        return max((index for token, index in learnt if token not in added), default=-1) + 1

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the control tokens: those that ``decode`` skips."""
        return self._special_ids

    @property
    def drops_leading_space(self) -> bool:
        """Whether a text loses one leading space, which the encoder of the family puts there."""
        return self._drops_leading_space

    def id_of(self, token: str) -> int | None:
        """The id of a token as the vocabulary writes it, or None."""
        index = self._backend.token_to_id(token)
        return None if index is None else int(index)

    def token_of(self, index: int) -> str | None:
        """The token of an id as the vocabulary writes it, or None."""
        token = self._backend.id_to_token(index) if index >= 0 else None
        return None if token is None else str(token)

    def encode(
        self, text: str, *, parse_special: bool = True, add_special: bool = False
    ) -> list[int]:
        """Ids of ``text``.

        ``parse_special`` false reads the text of a control token as plain text, for text that a
        user wrote. ``add_special`` adds what the model puts round a raw prompt (usually a
        beginning-of-text token); a rendered chat template already holds it. Half of a surrogate
        pair, which UTF-8 cannot hold, is read as U+FFFD.
        """
        if not text.isascii():
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        # The switch is a state of the backend, hence the lock.
        with self._lock:
            self._backend.encode_special_tokens = not parse_special
            return list(self._backend.encode(text, add_special_tokens=add_special).ids)

    def token_bytes(self, index: int) -> bytes:
        """The bytes that a token adds to a text; may be a part of a character.

        A control token gives the UTF-8 of its own name, though ``decode`` skips it by default. An
        id below ``vocab_size`` that no token has (a gap) gives b"". Raises UserError for an id
        outside the vocabulary.
        """
        known = self._bytes.get(index)
        if known is None:
            known = self._bytes[index] = self._read_token(index)
        return known

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD."""
        data = b"".join(
            self.token_bytes(index)
            for index in ids
            if not (skip_special and index in self._special_ids)
        )
        if self._drops_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def _read_token(self, index: int) -> bytes:
        if not 0 <= index < self.vocab_size:
            raise UserError(
                f"token id {index} is outside the vocabulary of {self.vocab_size}: "
                "the tokenizer belongs to another model; export the bundle again"
            )
        added = self._added.get(index)
        if added is not None:
            return added.content.encode("utf-8")
        token = self.token_of(index)
        if token is None:
            return b""
        if self._byte_level:
            try:
                return bytes(_BYTE_OF_CHARACTER[character] for character in token)
            except KeyError:  # a word that was added to the vocabulary as plain text
                return token.encode("utf-8")
        byte = _BYTE_TOKEN.fullmatch(token) if self._byte_tokens else None
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return token.replace(_METASPACE, " ").encode("utf-8")


def _decoder_steps(backend: Backend) -> list[dict[str, Any]]:
    """The decoder's steps in order, nested sequences flattened."""

    def flatten(step: dict[str, Any]) -> list[dict[str, Any]]:
        if step["type"] != "Sequence":
            return [step]
        return [inner for outer in step["decoders"] for inner in flatten(outer)]

    decoder = backend.decoder
    return [] if decoder is None else flatten(json.loads(decoder.__getstate__()))


def _restores_spaces(step: dict[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return True
    replaced = step.get("pattern") == {"String": _METASPACE}
    return step["type"] == "Replace" and replaced and step.get("content") == " "


def _drops_leading_space(step: dict[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return step.get("prepend_scheme", "always") != "never"
    return step["type"] == "Strip" and step.get("content") == " " and bool(step.get("start"))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
