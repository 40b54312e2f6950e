"""What each policy must commit, worked out slowly from its definition.

A sequence is a list of tokens and a list of the bits (tags) of their rows: no windows, slots,
buffers or promotions. Only the fake model's arithmetic is shared with :class:`HashEngine`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bitmtp_edge.decode.loop import Iteration

from .fake_engines import DRAFT, VERIFY, continuation, guess, mask_tag, token_tag


@dataclass(frozen=True)
class Model:
    """The fake model: facts, and the narrowest and widest window that matter.

    masks: mask embeddings P. widest_draft, widest_verify: rows.
    """

    vocab: int
    noise: int
    final: bool
    full: bool
    masks: int
    widest_draft: int
    widest_verify: int

    def rows(self, kind: int, tokens: Sequence[int], before: list[int]) -> list[int]:
        """Tags of ``tokens`` behind rows ``before``, and these."""
        tags = list(before)
        for token in tokens:
            tags.append(token_tag(kind, token, len(tags), 0, tags))
        return tags

    def block(self, size: int, tokens: list[int], rows: list[int]) -> tuple[list[int], list[float]]:
        """Drafts behind ``tokens``, whose rows as the draft step sees them are ``rows``."""
        n = len(tokens)
        ids = [-1 if self.masks == 1 else -1 - i for i in range(size - 1)]
        masks = [(ids[i], n + i) for i in range(size - 1)]
        tags = [rows[-1]]
        for i in range(size - 1):
            seen = masks if self.full else masks[: i + 1]
            tags.append(mask_tag(ids[i], n + i, rows, seen))
        right = continuation(self.rows(VERIFY, tokens, []), size, self.vocab)
        drafts = [
            guess(tag, token, self.noise, self.vocab)
            for tag, token in zip(tags, right, strict=True)
        ]
        return [token for token, _ in drafts], [probability for _, probability in drafts]


@dataclass
class Oracle:
    """Policy of blocks: tau None for speculative; min_prefix 0 for confidence.

    ``rows`` are those in history: the first ``verified`` of them final, or a verify step's.
    """

    model: Model
    block: int
    tau: float | None
    min_prefix: int
    tokens: list[int]
    rows: list[int] = field(init=False)
    verified: int = field(init=False)

    def __post_init__(self) -> None:
        self.prefill()

    def prefill(self) -> None:
        self.rows = self.model.rows(VERIFY, self.tokens[:-1], [])
        self.verified = len(self.rows)

    def iterations(self, limit: int) -> Iterator[Iteration]:
        while len(self.tokens) < limit:
            yield self._iteration(min(self.block, limit - len(self.tokens) - 1))

    def _iteration(self, count: int) -> Iteration:
        drafts: list[int] = []
        h = None if self.tau is None else 0
        if count:
            size = self.block if self.model.full else count
            if len(self.tokens) - len(self.rows) + size - 1 > self.model.widest_draft:
                self.prefill()
            pending = self.tokens[len(self.rows) :]
            kind = VERIFY if self.model.final else DRAFT
            self.rows = self.model.rows(kind, pending, self.rows)
            drafts, probabilities = self.model.block(size, self.tokens, self.rows)
            drafts = drafts[:count]
            if self.model.final:
                self.verified = len(self.rows)
            if self.tau is not None:
                sure = [p >= self.tau for p in probabilities[:count]]
                h = sure.index(False) if False in sure else count
        forced_end = count < self.block
        if h is not None and count and (self.min_prefix == 0 or h >= self.min_prefix):
            take = max(h, 1)
            unverified = len(self.tokens) - self.verified
            if self.model.final or unverified + take + self.block <= self.model.widest_verify:
                self.tokens += drafts[:take]
                return Iteration(drafts[:take], count, h, take, False, forced_end)
        # The verifier: what follows the tokens, then each draft, as long as they agree.
        rows = self.model.rows(VERIFY, self.tokens[self.verified :], self.rows[: self.verified])
        agreed = 0
        while agreed < count and rows[-1] % self.model.vocab == drafts[agreed]:
            rows = self.model.rows(VERIFY, [drafts[agreed]], rows)
            agreed += 1
        committed = [*drafts[:agreed], rows[-1] % self.model.vocab]
        self.rows, self.verified = rows, len(rows)
        self.tokens += committed
        return Iteration(committed, count, h, agreed, True, forced_end)
