"""Decoding policies: what a draft is made of, and when it is committed without a verify step.

The verify step is the same for all (loop.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.sampling import Drafts, TokenChoice
from bitmtp_edge.engines.base import StepOutput
from bitmtp_edge.errors import SettingError, UserError

if TYPE_CHECKING:
    from bitmtp_edge.decode.loop import Decoder


class Policy(ABC):
    """A dataclass, so that its settings can be reported beside its name.

    The methods below that are not abstract say what a policy does that verifies every draft.
    """

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    def greedy_only(self) -> bool:
        """Whether drafts are judged by their probability, which sampling has no use for."""
        return False

    @property
    def lossless(self) -> bool:
        """Whether every token is one that AR would have given."""
        return True

    @property
    @abstractmethod
    def max_drafts(self) -> int:
        """Drafts of an iteration that the limit does not shorten."""

    @property
    def draft_outputs(self) -> int:
        """Outputs of a draft step."""
        return 1

    @property
    def settings(self) -> dict[str, Any]:
        """What a result tells beside ``name``."""
        return asdict(self)  # type: ignore[call-overload]

    def restart(self) -> None:  # noqa: B027  most policies keep nothing
        """A new reply begins."""

    @abstractmethod
    def check(self, states: ReplayStates) -> None:
        """Raises UserError if a step of this policy would fit no replay state."""

    def plan(self, decoder: Decoder, most: int) -> int:
        """How many drafts the iteration that begins makes: at most ``most``, 0 for an AR step."""
        return min(self.max_drafts, most)

    @abstractmethod
    def begin(self, decoder: Decoder, count: int) -> StepOutput:
        """Starts the first draft step of an iteration of ``count`` drafts, 1 .. ``max_drafts``."""

    @abstractmethod
    def draft(self, decoder: Decoder, count: int, first: StepOutput) -> Drafts:
        """``count`` tokens that may follow ``decoder.prefix.tokens``. first: what :meth:`begin`
        started."""

    @property
    def verifies_all(self) -> bool:
        """Whether a verify step follows every draft step, whatever that gives."""
        return True

    @property
    def plain_next(self) -> bool:
        """Whether the next iteration is sure to be an AR step, whatever comes of this one."""
        return self.max_drafts == 0

    def confident(self, drafts: Drafts) -> int | None:
        """h, the length of the confidence prefix; None for a policy without one. Asked once an
        iteration."""
        return None

    def unverified(self, confident: int | None) -> int:
        """How many of the drafts to commit without a verify step, none where h is ``confident``:
        0 asks for one."""
        return 0

    def judge(self, choice: TokenChoice, output: StepOutput, drafts: Drafts) -> tuple[int, int]:
        """How many drafts the verify step accepts, and its own next token."""
        return choice.judge(output, drafts)


class PolicyAround(Policy):
    """Another policy, ``policy``, with some of its decisions taken otherwise."""

    policy: Policy

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def greedy_only(self) -> bool:
        return self.policy.greedy_only

    @property
    def lossless(self) -> bool:
        return self.policy.lossless

    @property
    def verifies_all(self) -> bool:
        return self.policy.verifies_all

    @property
    def max_drafts(self) -> int:
        return self.policy.max_drafts

    @property
    def draft_outputs(self) -> int:
        return self.policy.draft_outputs

    def check(self, states: ReplayStates) -> None:
        self.policy.check(states)

    def begin(self, decoder: Decoder, count: int) -> StepOutput:
        return self.policy.begin(decoder, count)

    def draft(self, decoder: Decoder, count: int, first: StepOutput) -> Drafts:
        return self.policy.draft(decoder, count, first)


@dataclass(frozen=True)
class AutoRegressive(Policy):
    """No drafts: every iteration is one verify step of one token."""

    name: ClassVar[str] = "ar"
    max_drafts: ClassVar[int] = 0

    def check(self, states: ReplayStates) -> None:
        states.width("verify", 1, 1)

    def begin(self, decoder: Decoder, count: int) -> StepOutput:
        raise ValueError("policy ar has no draft step")

    def draft(self, decoder: Decoder, count: int, first: StepOutput) -> Drafts:
        raise ValueError("policy ar has no drafts")


@dataclass(frozen=True)
class NestedSelfSpeculation(Policy):
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
            raise SettingError("gamma", f"is {self.gamma}: expected at least 1 draft token")
        if self.recent_n < 0:
            raise UserError(f"recent_n is {self.recent_n}: expected 0 or more tokens")

    @property
    def max_drafts(self) -> int:
        return self.gamma

    def check(self, states: ReplayStates) -> None:
        states.width("draft", 1, 1)
        states.width("verify", self.gamma + 1, self.gamma + 1)

    def begin(self, decoder: Decoder, count: int) -> StepOutput:
        decoder.fit_pending(1)
        return self._step(decoder, Drafts())

    def draft(self, decoder: Decoder, count: int, first: StepOutput) -> Drafts:
        drafts, output = Drafts(), first
        for _ in range(count - 1):
            decoder.promote_draft(1)  # the row of the token before, for the next step to read
            following = decoder.draft_behind(output, self._kv4_length(decoder))
            decoder.choice.draw(output, 1, drafts)
            output = self._step(decoder, drafts) if following is None else following
        decoder.stage_verify(drafts.tokens, output, 1)
        decoder.choice.draw(output, 1, drafts)
        return drafts

    def _step(self, decoder: Decoder, drafts: Drafts) -> StepOutput:
        """The draft step of the last token, the anchor or a draft."""
        kv4_length = self._kv4_length(decoder)
        return decoder.step("draft", decoder.prefix.drafted, drafts.tokens, 1, kv4_length)

    def _kv4_length(self, decoder: Decoder) -> int:
        if self.kv4_from_segment is None or decoder.engine.segment < self.kv4_from_segment:
            return 0
        return max(0, decoder.prefix.drafted - self.recent_n)


@dataclass(frozen=True)
class BlockPolicy(Policy):
    """BitMTP: one draft step gives a block of ``block`` tokens (BitMTP section 3.2).

    Its window is the pending tokens and block - 1 masks. The last pending token, the anchor,
    predicts the first draft and each mask the next. Raises UserError for numbers out of range.
    """

    block: int

    def __post_init__(self) -> None:
        if self.block < 2:
            raise SettingError("block", f"is {self.block}: expected at least 2 tokens")

    @property
    def max_drafts(self) -> int:
        return self.block

    @property
    def draft_outputs(self) -> int:
        return self.block

    def check(self, states: ReplayStates) -> None:
        if not states.mask_embeddings:
            raise UserError(
                f"policy {self.name} drafts with mask embeddings, which this model has none of: "
                "take policy ar or nested, or a model trained for multi-token drafts"
            )
        if states.mask_embeddings != 1 and self.block - 1 > states.mask_embeddings:
            raise SettingError(
                "block",
                f"is {self.block}, but the model has {states.mask_embeddings} mask "
                f"embeddings: expected at most {states.mask_embeddings + 1}",
            )
        states.width("draft", self.block, self.block)
        states.width("verify", self.block + 1, self.block + 1)

    def begin(self, decoder: Decoder, count: int) -> StepOutput:
        states = decoder.states
        # Masks that see each other both ways were trained in whole blocks.
        size = self.block if states.full_blocks else count
        decoder.fit_pending(states.draft_widths[-1] - size + 1)
        two_way = size - 1 if states.full_blocks else 0
        masks = states.mask_ids(size - 1)
        return decoder.step("draft", decoder.prefix.drafted, masks, size, two_way=two_way)

    def draft(self, decoder: Decoder, count: int, first: StepOutput) -> Drafts:
        prefix = decoder.prefix
        decoder.promote_draft(len(prefix.tokens) - prefix.drafted)
        if decoder.states.draft_rows_final:
            prefix.settle()
        decoder.stage_verify((), first, count)
        drafts = Drafts()
        decoder.choice.draw(first, count, drafts)
        return drafts


@dataclass(frozen=True)
class SpeculativeOnly(BlockPolicy):
    """Every draft block is verified: exactly the tokens of AR."""

    name: ClassVar[str] = "speculative"


@dataclass(frozen=True)
class ConfidenceOnly(BlockPolicy):
    """Commits the longest prefix of drafts of probability >= ``tau`` each, and at least one."""

    tau: float

    name: ClassVar[str] = "confidence"
    greedy_only: ClassVar[bool] = True
    lossless: ClassVar[bool] = False
    verifies_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.tau <= 1:
            raise SettingError("tau", f"is {self.tau}: expected a probability above 0, at most 1")

    def confident(self, drafts: Drafts) -> int | None:
        length = 0
        for probability in drafts.probabilities:
            if probability < self.tau:
                break
            length += 1
        return length

    def unverified(self, confident: int | None) -> int:
        return max(confident or 0, 1)


@dataclass(frozen=True)
class Hybrid(ConfidenceOnly):
    """Commits the confidence prefix where it has ``min_prefix`` tokens or more, else verifies."""

    min_prefix: int

    name: ClassVar[str] = "hybrid"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_prefix <= self.block:
            raise SettingError(
                "min_prefix", f"is {self.min_prefix}: expected 1 to {self.block}, the block"
            )

    def unverified(self, confident: int | None) -> int:
        length = confident or 0
        return length if length >= self.min_prefix else 0
