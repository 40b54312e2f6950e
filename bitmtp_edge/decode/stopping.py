"""Where a reply ends: stop tokens, stop strings and the token limit.

The ids, their count and the text of a reply are cut at the same place, so ``decode(ids)`` is always
the text. Three rules follow from that.

- A stop string cuts the text before it. A token that lies across the cut is dropped whole, with
  those of its characters that come before the stop string: half a token has no id.
- Text is released by whole tokens, and never while it could still belong to a stop string. What was
  released is always a beginning of the final text.
- The result depends on the stream of ids, never on how it was split into accepted blocks. Ids are
  judged one by one: a stop token first, then a stop string, then the limit. So a stop beats the
  limit on the last token allowed, and nothing after the limit counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bitmtp_edge.errors import SettingError, UserError
from bitmtp_edge.text.detokenizer import IncrementalDetokenizer
from bitmtp_edge.text.tokenizer import Tokenizer

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class StopRules:
    """What ends a reply; raises UserError for a stop string that is empty or no text.

    Of several stop strings the one that *ends* first wins, since that alone does not depend on how
    the text is cut into tokens; of those that end together, the longest. A stop string that is the
    name of a control token, which the text never shows, counts as a stop token.
    """

    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if "" in self.stop_strings:
            raise UserError(
                "a stop string is empty, which would end every reply at once: leave it out"
            )
        for text in self.stop_strings:
            try:
                text.encode()
            except UnicodeEncodeError:
                raise UserError(
                    f"the stop string {text!a} is not UTF-8 text: no reply holds it"
                ) from None


@dataclass(frozen=True)
class StopResult:
    """What one accepted block added."""

    text: str
    """Text released by this block; with that of earlier blocks, ``decode`` of ``kept`` ids."""
    kept: int
    """Ids of the whole reply that can no longer be cut off; all of them once finished."""
    finish_reason: FinishReason | None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class StopScanner:
    """Follows one reply and says where it ends."""

    def __init__(self, tokenizer: Tokenizer, rules: StopRules, max_new_tokens: int) -> None:
        """Raises UserError if ``max_new_tokens`` is below 1."""
        if max_new_tokens < 1:
            raise SettingError("max_new_tokens", f"is {max_new_tokens}: expected at least 1")
        self._named = {
            index: text
            for text in rules.stop_strings
            if (index := tokenizer.id_of(text)) is not None and index in tokenizer.special_ids
        }
        self._stop_ids = rules.stop_ids.union(self._named)
        self._stop_strings = rules.stop_strings
        self._limit = max_new_tokens
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._ids: list[int] = []
        self._kept = 0
        self._released = 0
        self._held = ""
        self._reason: FinishReason | None = None
        self.stop_string: str | None = None
        """The stop string that ended the reply, also where it is the name of a token."""

    @property
    def ids(self) -> list[int]:
        """The ids that are sure to stay: the first ``kept`` of the last result."""
        return self._ids[: self._kept]

    def push(self, ids: Sequence[int]) -> StopResult:
        """Take one block of committed ids. Ids after the end of the reply are ignored."""
        for index in ids:
            if self._reason is not None:
                break
            self._take(index)
        if self._reason is None:
            kept = bisect_right(self._detokenizer.offsets, self._released + self._safe_length())
        else:
            kept = len(self._ids)
        return self._release(kept)

    def _take(self, index: int) -> None:
        if index in self._stop_ids:
            self.stop_string = self._named.get(index)
            self._finish("stop")
            return
        self._ids.append(index)
        self._held += self._detokenizer.push_one(index)
        if not self._cut_at_stop_string() and len(self._ids) == self._limit:
            self._finish("length")

    def _finish(self, reason: FinishReason) -> None:
        # A character left open becomes U+FFFD, which may itself complete a stop string.
        self._held += self._detokenizer.flush()
        if not self._cut_at_stop_string():
            self._reason = reason

    def _cut_at_stop_string(self) -> bool:
        if not self._stop_strings:
            return False
        found = [
            (start + len(text), start, text)
            for text in self._stop_strings
            if (start := self._held.find(text)) >= 0
        ]
        if not found:
            return False
        _, start, self.stop_string = min(found)
        self._ids = self._ids[: bisect_right(self._detokenizer.offsets, self._released + start)]
        self._reason = "stop"
        return True

    def _safe_length(self) -> int:
        """How many characters of the held text can belong to no stop string."""
        held = self._held
        longest = 0
        for text in self._stop_strings:
            for length in range(min(len(text) - 1, len(held)), longest, -1):
                if held.endswith(text[:length]):
                    longest = length
                    break
        return len(held) - longest

    def _release(self, kept: int) -> StopResult:
        end = self._detokenizer.offsets[kept - 1] if kept else 0
        text = self._held[: end - self._released]
        self._held = self._held[end - self._released :]
        self._released, self._kept = end, kept
        return StopResult(text, kept, self._reason)
