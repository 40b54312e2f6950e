"""Whether drafts fare so much otherwise than was expected that the text must have changed."""

from __future__ import annotations

from collections.abc import Sequence

DEVIATIONS = 3.0  # standard deviations that chance does not explain
OUTLIER = 16.0  # added to the variance: a single block that breaks off early tells nothing


class Surprise:
    """Adds up how far the lengths of drafts (confident, or right) are off what was expected."""

    __slots__ = ("_limit", "_mean", "_off", "_variance")

    def __init__(self) -> None:
        self.expect(())

    def expect(self, reach: Sequence[float]) -> None:
        """From now on a length of at least i has the probability ``reach[i - 1]``."""
        self._mean = sum(reach)
        squares = sum((2 * i - 1) * share for i, share in enumerate(reach, 1))
        self._variance = DEVIATIONS**2 * (squares - self._mean**2)
        self._off, self._limit = 0.0, DEVIATIONS**2 * OUTLIER

    def see(self, length: int) -> None:
        self._off += length - self._mean
        self._limit += self._variance

    @property
    def struck(self) -> bool:
        return self._off * self._off > self._limit
