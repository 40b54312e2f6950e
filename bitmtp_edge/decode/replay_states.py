"""Which fixed shapes exist, and which of them a step takes (docs/architecture.md)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.base import ReplayState, Role
from bitmtp_edge.errors import UserError


@dataclass(frozen=True)
class ReplayStates:
    """The replay states of one model, as its bundle lists them; raises UserError if they clash.

    segments: KV capacities in rows, the last one holding the context. draft_widths, verify_widths:
    window widths by role. prefill_chunk: one more verify width, of which only the last row has an
    output. context: the most tokens a sequence may have. draft_outputs: outputs of a draft step, of
    a block of that many tokens; a narrower draft step has one for each slot.

    A step takes the narrowest width that holds its rows. A verify step has an output for every slot
    or, where only its last row matters, just one: the head is a large part of a small model.
    """

    segments: tuple[int, ...]
    draft_widths: tuple[int, ...]
    verify_widths: tuple[int, ...]
    prefill_chunk: int
    context: int
    draft_outputs: int = 1
    draft_rows_final: bool = False
    mask_embeddings: int = 0
    block_attention: str = "causal"
    _known: dict[tuple[Role, int, int, int, bool], ReplayState] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for name in ("segments", "draft_widths", "verify_widths"):
            values = tuple(sorted(set(getattr(self, name))))
            object.__setattr__(self, name, values)
            if values and values[0] < 1:
                raise UserError(f"replay states: {name} has {values[0]}, expected 1 or more")
        if not self.segments or not self.verify_widths:
            raise UserError("replay states: expected at least one segment and one verify width")
        if self.prefill_chunk < 1 or self.draft_outputs < 1 or self.context < 2:
            raise UserError(
                f"replay states: prefill_chunk {self.prefill_chunk}, draft_outputs "
                f"{self.draft_outputs}, context {self.context}: expected at least 1, 1 and 2"
            )
        if self.context > self.segments[-1]:
            raise UserError(
                f"replay states: the context of {self.context} tokens is over the largest "
                f"segment of {self.segments[-1]} rows"
            )

    @classmethod
    def of(cls, bundle: Bundle) -> ReplayStates:
        """The states that ``bundle`` was exported with, for drafts of its own block; its widest
        window is the prefill chunk."""
        replay, model = bundle.replay, bundle.model
        return cls(
            segments=replay.segments,
            draft_widths=replay.draft_widths,
            verify_widths=replay.verify_widths,
            prefill_chunk=replay.max_width,
            context=model.context,
            draft_outputs=bundle.decoding.block or 1,
            draft_rows_final=model.draft_rows_final,
            mask_embeddings=model.mask_embeddings,
            block_attention=model.block_attention,
        )

    def with_draft_outputs(self, outputs: int) -> ReplayStates:
        """The same states for drafts of another block."""
        return self if outputs == self.draft_outputs else replace(self, draft_outputs=outputs)

    @property
    def full_blocks(self) -> bool:
        """Whether the masks of a block see each other both ways."""
        return self.block_attention == "full"

    def mask_ids(self, count: int) -> list[int]:
        """Token ids of the first ``count`` masks of a block."""
        return [-1] * count if self.mask_embeddings == 1 else list(range(-1, -1 - count, -1))

    @property
    def max_width(self) -> int:
        """Workspace rows that every KV buffer needs."""
        return max(self.draft_widths + self._prefill_widths)

    def state(
        self, role: Role, rows: int, heads: int, segment: int, logits: bool = False
    ) -> ReplayState:
        """The narrowest state with ``rows`` slots, the last ``heads`` of which need an output.

        Raises UserError if no width of the role is wide enough.
        """
        key = (role, rows, heads, segment, logits)
        found = self._known.get(key)
        if found is None:
            width = self.width(role, rows, heads)
            found = ReplayState(width, self._outputs(role, width, heads), segment, role, logits)
            self._known[key] = found
        return found

    def width(self, role: Role, rows: int, heads: int) -> int:
        """The narrowest width of ``role`` for ``rows`` rows. Raises UserError if there is none."""
        if role == "draft":
            widths = self.draft_widths
        else:
            widths = self._prefill_widths if heads == 1 else self.verify_widths
        for width in widths:
            if rows <= width:
                return width
        shown = ", ".join(map(str, widths)) or "none"
        raise UserError(
            f"no {role} window holds {rows} tokens (widths here: {shown}): "
            "draft fewer tokens a step, or export the bundle with a wider replay state"
        )

    def segment_for(self, rows: int) -> int:
        """The smallest segment of at least ``rows`` rows. Raises UserError if there is none."""
        for segment in self.segments:
            if rows <= segment:
                return segment
        raise UserError(
            f"no KV segment holds {rows} rows: the largest here has {self.segments[-1]}; "
            "shorten the text, or export the bundle with a longer context"
        )

    def verify_width_at_most(self, rows: int) -> int:
        """The widest prefill window that ``rows`` rows fill, else the narrowest one there is."""
        return max((w for w in self._prefill_widths if w <= rows), default=self._prefill_widths[0])

    def prefill_rows(self, remaining: int) -> int:
        """How many of ``remaining`` prompt tokens the next prefill step takes.

        All, if the window that holds them is at least half full; else as many as fill the widest
        window. So padding never more than doubles the work, and few steps are needed.
        """
        for width in self._prefill_widths:
            if remaining <= width <= 2 * remaining:
                return remaining
        return min(remaining, self.verify_width_at_most(remaining))

    def all(self, logits: bool = False) -> tuple[ReplayState, ...]:
        """Every state that decoding may ask for; ``logits``: those that sampling adds."""
        shapes: set[tuple[int, int, Role]] = set()
        for width in self.draft_widths:
            shapes.add((width, self._outputs("draft", width, 1), "draft"))
        for width in self.verify_widths:
            shapes |= {(width, 1, "verify"), (width, width, "verify")}
        if not logits:
            shapes.add((self.prefill_chunk, 1, "verify"))
        return tuple(
            ReplayState(width, outputs, segment, role, logits)
            for segment in self.segments
            for width, outputs, role in sorted(shapes, key=lambda shape: (shape[2], shape))
        )

    @property
    def _prefill_widths(self) -> tuple[int, ...]:
        return tuple(sorted({*self.verify_widths, self.prefill_chunk}))

    def _outputs(self, role: Role, width: int, heads: int) -> int:
        if role == "draft":
            return min(width, self.draft_outputs)
        return 1 if heads == 1 else width


@dataclass(frozen=True)
class OneWidth(ReplayStates):
    """The same states, but every decode step runs at their widest, with an output for each slot.

    What a policy decides by widths stays as it is, and so do prefill's wider windows.
    """

    def state(
        self, role: Role, rows: int, heads: int, segment: int, logits: bool = False
    ) -> ReplayState:
        found = super().state(role, rows, heads, segment, logits)
        width = self.decode_width
        return found if found.width > width else replace(found, width=width, outputs=width)

    @property
    def decode_width(self) -> int:
        """The widest width of either role below the prefill chunk."""
        widths = [w for w in self.draft_widths + self.verify_widths if w < self.prefill_chunk]
        return max(widths, default=self.prefill_chunk)
