"""How often drafts turn out right, position by position, from the iterations so far."""

from __future__ import annotations

from collections.abc import Sequence

MEMORY = 64
"""Trials of a position that count: older ones fade."""
PRIOR_TRIALS = 2.0
"""What the priors below count for, in trials."""
CONFIDENT = 0.8
RIGHT_FIRST = 0.97
RIGHT_CONFIDENT = 0.97
RIGHT_FIRST_UNSURE = 0.5
RIGHT_LATER = 0.85


class Rate:
    """A share of successes among the latest trials, and a prior where there are few."""

    __slots__ = ("_prior", "_right", "_tried")

    def __init__(self, prior: float | Rate) -> None:
        self._prior = prior
        self._right = 0.0
        self._tried = 0.0

    def see(self, success: bool) -> None:
        keep = 1 - 1 / MEMORY
        self._right = keep * self._right + success
        self._tried = keep * self._tried + 1

    @property
    def value(self) -> float:
        prior = self._prior.value if isinstance(self._prior, Rate) else self._prior
        return (self._right + PRIOR_TRIALS * prior) / (self._tried + PRIOR_TRIALS)


class Acceptance:
    """What the h confident and the a right drafts of a block are likely to be.

    In a causal block the first drafts are those that a smaller block would have given, so a block
    tells of every smaller one, and of each position as far as it got: a position is tried where all
    before it succeeded. There are rates

    - of a draft being confident, by position; apart from these, where the block before was cut
      short at a draft that was not (``cut``), which then comes next;
    - of the first draft being right, which the anchor itself gives;
    - of a later, confident one being right;
    - of a later one behind these being right, by its distance from the last confident one.

    Without a probability to be sure from (``judged`` False) no draft is confident.
    """

    def __init__(self, block: int, judged: bool) -> None:
        self.block = block
        plain = [Rate(CONFIDENT if judged else 0.0) for _ in range(block)]
        self._confident = {False: plain, True: [Rate(rate) for rate in plain]}
        self._first = Rate(RIGHT_FIRST)
        self._sure = Rate(RIGHT_CONFIDENT)
        first = RIGHT_FIRST_UNSURE if judged else RIGHT_LATER
        self._unsure = [Rate(first), *(Rate(RIGHT_LATER) for _ in range(block - 1))]

    def see_confident(self, drafted: int, confident: int, cut: bool) -> None:
        """``confident`` of ``drafted`` drafts in a row were."""
        rates = self._confident[cut]
        for rate in rates[:confident]:
            rate.see(True)
        if confident < drafted:
            rates[confident].see(False)

    def see_right(self, drafted: int, confident: int, right: int) -> None:
        """A verify step took ``right`` of ``drafted`` drafts, of which ``confident`` were."""
        rates = self._right_rates(confident)
        for index in range(min(right + 1, drafted)):
            rates[index].see(index < right)

    def confident_lengths(self, cut: bool) -> list[float]:
        """The probability that at least i drafts are confident, i = 0 .. block."""
        return _products([rate.value for rate in self._confident[cut]])

    def expected_right(self) -> list[list[float]]:
        """How many of the first i drafts a verify step would take where h are confident: [h][i]."""
        found = []
        for confident in range(self.block + 1):
            rates = self._right_rates(confident)
            total, sums = 0.0, [0.0]
            for probability in _products([rate.value for rate in rates])[1:]:
                total += probability
                sums.append(total)
            found.append(sums)
        return found

    def _right_rates(self, confident: int) -> list[Rate]:
        """Of each position, where ``confident`` drafts are."""
        sure = [self._sure] * confident
        return [self._first, *[*sure, *self._unsure][1 : self.block]]


def _products(rates: Sequence[float]) -> list[float]:
    """Running products, from 1."""
    found = [1.0]
    for rate in rates:
        found.append(found[-1] * rate)
    return found
