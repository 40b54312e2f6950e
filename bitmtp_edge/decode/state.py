"""The accepted prefix: which tokens are committed, and whose KV rows lie in history."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class AcceptedPrefix:
    """Accepted-prefix alignment (BitMTP section 3.1) as one object with a checked invariant.

    ``tokens`` are committed. History rows [0, verified) have a verify row's bits; rows
    [verified, drafted) are tentative: later drafts may read them, the verifier replaces them.
    ``tokens[drafted:]`` are pending, the last of them is the anchor. At rest

        0 <= verified <= drafted <= len(tokens) - 1          (all 0 while there are no tokens)

    Inside an iteration ``drafted`` may run ahead: over rows of drafts that are not committed, or
    over the anchor's, which a block draft step has computed; and ``verified`` with it, where draft
    rows are final.

    Every method lowers ``verified`` before it removes tokens and raises it after it adds them. So
    an interrupt between any two instructions leaves rows that are what ``verified`` says, and
    ``drop_tentative``, ``truncate`` or ``resume`` brings the state to rest.
    """

    tokens: list[int] = field(default_factory=list)
    verified: int = 0
    drafted: int = 0

    @property
    def pending(self) -> list[int]:
        """Committed tokens whose rows are not in history."""
        return self.tokens[self.drafted :]

    @property
    def verify_start(self) -> int:
        """Where a verify window starts. It repeats the anchor where even its row is verified."""
        return min(self.verified, len(self.tokens) - 1)

    def check(self) -> None:
        """Raises AssertionError if the state is not at rest: a fault of the decoder."""
        last = max(len(self.tokens) - 1, 0)
        assert 0 <= self.verified <= self.drafted <= last, (
            f"verified {self.verified}, drafted {self.drafted}, {len(self.tokens)} tokens"
        )

    def keep_drafted(self, rows: int) -> None:
        """``rows`` more tentative rows lie in history."""
        self.drafted += rows

    def settle(self) -> None:
        """All rows in history have a verify row's bits: the end of a draft step of final rows."""
        self.verified = self.drafted

    def keep_verified(self, rows: int) -> None:
        """``rows`` more verify rows of committed tokens lie in history: a prefill step."""
        self.drafted = self.verified + rows
        self.verified += rows
        self.check()

    def commit(self, tokens: list[int]) -> None:
        """The end of a verify step: ``tokens`` are the accepted drafts and the verifier's own.

        The rows of all tokens but the last lie in history, as verify rows.
        """
        self.tokens.extend(tokens)
        self.drafted = len(self.tokens) - 1
        self.verified = self.drafted
        self.check()

    def commit_unverified(self, tokens: list[int]) -> None:
        """The end of an iteration without a verify step: ``tokens`` are pending now."""
        self.tokens.extend(tokens)
        self.check()

    def drop_tentative(self) -> None:
        """Forgets the rows that no verify step has confirmed, and the anchor's."""
        self.verified = min(self.verified, max(len(self.tokens) - 1, 0))
        self.drafted = self.verified
        self.check()

    def truncate(self, length: int) -> None:
        """Stops at ``length`` >= 1 tokens, if there are more; the last one is pending again."""
        if length < 1:
            raise ValueError(f"a sequence is cut to at least one token, not to {length}")
        last = max(min(length, len(self.tokens)) - 1, 0)
        self.verified = min(self.verified, last)
        self.drafted = min(self.drafted, last)
        del self.tokens[length:]
        self.check()

    def resume(self, prompt: list[int]) -> None:
        """Goes on with ``prompt``, keeping the verified rows of what it has in common with before.

        At least its last token stays pending, since the next step needs an output there.
        """
        common = 0
        for old, new in zip(self.tokens[: self.verified], prompt, strict=False):
            if old != new:
                break
            common += 1
        self.verified = min(common, len(prompt) - 1)
        self.drafted = self.verified
        self.tokens = list(prompt)
        self.check()
