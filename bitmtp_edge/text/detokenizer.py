"""Text as its tokens arrive, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from bitmtp_edge.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns a stream of ids into text that is never taken back.

    However the ids are split over calls, all that ``push`` returned, then ``flush``, is
    ``tokenizer.decode`` of them all.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.drops_leading_space
        self._length = 0
        self._open_tokens = 0
        self.offsets: list[int] = []
        """For each token, in characters, how much text keeping it needs.

        The length of the text up to the first end of a token, at or after this one, that is no
        place inside a character. So the tokens before a cut at character c are the first
        ``bisect_right(offsets, c)``. Tokens of a character still open have no entry yet.
        """

    def push(self, ids: Sequence[int]) -> str:
        """The text that became final with these ids; the start of a character is held."""
        return "".join([self.push_one(index) for index in ids])

    def flush(self) -> str:
        """End the stream: U+FFFD if it ends inside a character, else nothing."""
        text = self._decoder.decode(b"", final=True)
        self._length += len(text)
        self._close_tokens()
        return text

    def push_one(self, index: int) -> str:
        """As :meth:`push` of one id."""
        data = b"" if index in self._skipped else self._tokenizer.token_bytes(index)
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        text = self._decoder.decode(data)
        self._length += len(text)
        self._open_tokens += 1
        if not self._decoder.getstate()[0]:
            self._close_tokens()
        return text

    def _close_tokens(self) -> None:
        self.offsets += [self._length] * self._open_tokens
        self._open_tokens = 0
