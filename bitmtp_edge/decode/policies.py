"""Decoding policies: what a draft is made of. The verify step is the same for all (loop.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.sampling import Drafts
from bitmtp_edge.errors import UserError

if TYPE_CHECKING:
    from bitmtp_edge.decode.loop import Decoder


class Policy(Protocol):
    """A dataclass, so that its settings can be reported beside its name."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: ClassVar[str]

    @property
    def max_drafts(self) -> int:
        """Drafts of an iteration that the limit does not shorten."""

    def check(self, states: ReplayStates) -> None:
        """Raises UserError if a step of this policy would fit no replay state."""

    def draft(self, decoder: Decoder, count: int) -> Drafts:
        """``count`` <= ``max_drafts`` tokens that may follow ``decoder.prefix.tokens``."""


@dataclass(frozen=True)
class AutoRegressive:
    """No drafts: every iteration is one verify step of one token."""

    name: ClassVar[str] = "ar"
    max_drafts: ClassVar[int] = 0

    def check(self, states: ReplayStates) -> None:
        states.width("verify", 1, 1)

    def draft(self, decoder: Decoder, count: int) -> Drafts:
        return Drafts()


@dataclass(frozen=True)
class NestedSelfSpeculation:
    """BitNest: ``gamma`` single-token steps that read the base plane draft, both planes verify.

    In segments of at least ``kv4_from_segment`` rows a draft step also reads the history as KV4,
    except its newest ``recent_n`` rows (BitNest section 3.4); None never does. Raises UserError for
    numbers out of range.
    """

    gamma: int
    kv4_from_segment: int | None = None
    recent_n: int = 0

    name: ClassVar[str] = "nested"

    def __post_init__(self) -> None:
        if self.gamma < 1:
            raise UserError(f"gamma is {self.gamma}: expected at least 1 draft token")
        if self.recent_n < 0:
            raise UserError(f"recent_n is {self.recent_n}: expected 0 or more tokens")

    @property
    def max_drafts(self) -> int:
        return self.gamma

    def check(self, states: ReplayStates) -> None:
        states.width("draft", 1, 1)
        states.width("verify", self.gamma + 1, self.gamma + 1)

    def draft(self, decoder: Decoder, count: int) -> Drafts:
        drafts = Drafts()
        start = decoder.prefix.drafted
        for history in range(start, start + count):
            if history > start:
                decoder.promote_draft([0])  # the row of the token before, for this step to read
            output = decoder.step("draft", history, drafts, 1, self._kv4_length(decoder, history))
            decoder.choice.draw(output, drafts)
        return drafts

    def _kv4_length(self, decoder: Decoder, history: int) -> int:
        if self.kv4_from_segment is None or decoder.engine.segment < self.kv4_from_segment:
            return 0
        return max(0, history - self.recent_n)
