"""Means of rounds, how sure they are, and when two of them differ beyond noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

MIN_ROUNDS = 3

# Two runs of one command differ by more than the rounds of one run do: other addresses, other
# temperatures. Below this share of the older mean nothing is called a change.
FLOOR = 0.02

# Student's t: 95 % of it lie within, by degrees of freedom.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_Z = 1.959964


@dataclass(frozen=True)
class Estimate:
    """The mean of ``values``, one a round, and its 95 % interval by Student's t. low, high: None of
    a single round."""

    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    @property
    def margin(self) -> float | None:
        """Half the interval over the mean; None of a single round, or a mean of 0."""
        if self.low is None or self.high is None or not self.mean:
            return None
        return (self.high - self.low) / 2 / abs(self.mean)

    def is_tight(self, within: float) -> bool:
        """Whether the mean is known to ``within``, a share of it."""
        margin = self.margin
        return margin is not None and margin <= within

    def differs_from(self, old: Estimate) -> bool:
        """Whether the change since ``old`` is beyond noise: the two intervals do not touch, and the
        means are more than :data:`FLOOR` apart. A single round says nothing."""
        if self.low is None or self.high is None or old.low is None or old.high is None:
            return False
        apart = self.low > old.high or self.high < old.low
        return apart and abs(self.mean - old.mean) > FLOOR * abs(old.mean)


def estimate(values: Sequence[float]) -> Estimate:
    """Of one value or more."""
    centre = mean(values)
    if len(values) < 2:
        return Estimate(centre, None, None, tuple(values))
    half = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(centre, centre - half, centre + half, tuple(values))


def t_quantile(degrees: int) -> float:
    """How many standard errors 95 % of Student's t lie within; ``degrees`` of freedom, 1 or more.

    Beyond the table by the first terms of its expansion around the normal distribution, which are
    right to four digits there.
    """
    if degrees <= len(_T):
        return _T[degrees - 1]
    z = _Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / degrees + second / degrees**2
