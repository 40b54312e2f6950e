"""What iterations take, over what the saved step costs say they take."""

from __future__ import annotations

PRIOR = 20.0
"""AR steps whose time a block's pace is held for the common one, before it has told."""
MOST = 1.25
"""Times the common pace, or its inverse, that iterations count for at most: the first step of a
kind is slow, and what else the machine does says nothing of the block."""
NOISE = 0.02
"""A block whose pace is that near to the common one has the common one."""


class Pace:
    """Time over expected time, block by block; block 0 is an AR step.

    The saved costs come from some runs of each step alone. In decoding the same step may take a
    tenth more or less, and not the same tenth at every width, which is enough to prefer the wrong
    block. Of a block that was seen little, the pace of all iterations together stands. AR steps
    that were seen little are held for no slower than the table says, since on a GPU what slows
    blocks down, the host between two steps, does not slow these.
    """

    def __init__(self) -> None:
        self._took: dict[int, tuple[float, float]] = {}

    def see(self, block: int, took: float, expected: float) -> None:
        """Iterations with ``block``; both times in AR steps."""
        usual = expected * self._common()
        took = min(max(took, usual / MOST), usual * MOST)
        times = self._took.get(block, (0.0, 0.0))
        self._took[block] = times[0] + took, times[1] + expected

    def fade(self, keep: float) -> None:
        """What was seen so far counts ``keep`` times what it did."""
        self._took = {block: (t * keep, e * keep) for block, (t, e) in self._took.items()}

    def of(self, block: int) -> float:
        common = self._common()
        took, expected = self._took.get(block, (0.0, 0.0))
        prior = min(common, 1.0) if block == 0 else common
        own = (took + PRIOR * prior) / (expected + PRIOR)
        return own if abs(own - common) > NOISE * common else common

    def _common(self) -> float:
        took = sum(took for took, _ in self._took.values())
        expected = sum(expected for _, expected in self._took.values())
        return (PRIOR + took) / (PRIOR + expected)
