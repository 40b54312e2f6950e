"""How often drafts turn out right, position by position, from the iterations so far.

Rates are hopeful where little is known, and what was seen fades: what failed long ago is worth
another try, and needs no other reason for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

HOPE = 0.97
"""What a rate is held for before the first trial. It counts for one trial."""
ALIKE = 0.8
"""The share of HOPE that a position's rate replaces by that of the position before it."""
AFTER_CUT = 0.2
"""In place of HOPE, of a draft being confident that was not so in the block before."""
UNSURE, UNSURE_TRIALS = 0.7, 8
"""In place of HOPE, of the first unsure draft behind confident ones being right, and the trials it
counts for: a choice that verifies few such drafts should not stand or fall with one of them."""


class Rate:
    """A share of successes among trials."""

    __slots__ = ("_right", "_tried")

    def __init__(self) -> None:
        self._right = 0.0
        self._tried = 0.0

    def see(self, success: bool) -> None:
        self._right += success
        self._tried += 1

    def fade(self, keep: float) -> None:
        self._right *= keep
        self._tried *= keep

    def value(self, hope: float = HOPE, trials: float = 1) -> float:
        """``hope``: what it is held for before the first trial, counting for ``trials``."""
        return (self._right + trials * hope) / (self._tried + trials)


@dataclass(frozen=True)
class Outlook:
    """What is likely of the next blocks.

    lengths: the probability of at least i confident drafts, i = 0 .. block. after_cut: of at least
    one behind a block that was cut short. first: of the first draft being right. sure: of a later,
    confident one. unsure: of a later one behind these, by its distance from the last confident one.
    """

    lengths: list[float]
    after_cut: float
    first: float
    sure: float
    unsure: list[float]

    @classmethod
    def flawless(cls, block: int) -> Outlook:
        """All drafts confident and right."""
        return cls([1.0] * (block + 1), 1.0, 1.0, 1.0, [1.0] * block)

    def reach(self, block: int) -> list[float]:
        """The probability of at least i right drafts of ``block``, none of them confident,
        i = 1 .."""
        return list(accumulate([self.first, *self.unsure[1:block]], mul))

    def right(self, block: int) -> list[float]:
        """How many drafts of ``block`` a verify step would take where h are confident, h = 0 .."""
        behind = _sums(self.unsure)
        found = [self.first * (1 + _sums(self.unsure[1:])[block - 1])]
        certain, reach = 0.0, self.first
        for confident in range(1, block + 1):
            certain += reach
            found.append(certain + reach * behind[block - confident])
            reach *= self.sure
        return found


class Acceptance:
    """What the h confident and the a right drafts of a block are likely to be.

    In a causal block the first drafts are those that a smaller block would have given, so a block
    tells of every smaller one, and of each position as far as it got: a position is tried where all
    before it succeeded. Where a block was cut short at a draft that was not confident (``cut``),
    that draft comes next, so the first of the block behind has a rate of its own.

    Without a probability to be sure from (``judged`` False) no draft is confident.
    """

    def __init__(self, block: int, judged: bool) -> None:
        self.block = block
        self._judged = judged
        self._confident = [Rate() for _ in range(block)]
        self._after_cut = Rate()
        self._first = Rate()
        self._sure = Rate()
        self._unsure = [Rate() for _ in range(block)]

    def see_confident(self, drafted: int, confident: int, cut: bool) -> None:
        """``confident`` of ``drafted`` drafts in a row were."""
        rates = [self._after_cut, *self._confident[1:]] if cut else self._confident
        for index in range(min(confident + 1, drafted)):
            rates[index].see(index < confident)

    def see_right(self, drafted: int, confident: int, right: int) -> None:
        """A verify step took ``right`` of ``drafted`` drafts, of which ``confident`` were."""
        self._first.see(right > 0)
        for index in range(1, min(right + 1, drafted)):
            rate = self._sure if index < confident else self._unsure[index - confident]
            rate.see(index < right)

    def fade(self, keep: float) -> None:
        """Trials so far count ``keep`` times what they did."""
        for rate in (*self._confident, self._after_cut, self._first, self._sure, *self._unsure):
            rate.fade(keep)

    def outlook(self) -> Outlook:
        confident = _alike(self._confident) if self._judged else [0.0] * self.block
        unsure = self._unsure[0].value(UNSURE, UNSURE_TRIALS)
        return Outlook(
            [1.0, *accumulate(confident, mul)],
            self._after_cut.value(AFTER_CUT),
            self._first.value(),
            self._sure.value(),
            [unsure, *_alike(self._unsure[1:])],
        )


def _alike(rates: Iterable[Rate]) -> list[float]:
    """Their values, where neighbours are likely to be alike."""
    found, before = [], HOPE
    for rate in rates:
        before = rate.value(ALIKE * before + (1 - ALIKE) * HOPE)
        found.append(before)
    return found


def _sums(rates: Iterable[float]) -> list[float]:
    """How many of the first i succeed in a row, i = 0 .."""
    return [0.0, *accumulate(accumulate(rates, mul))]
