"""What a meter tells of a window. ``dataclasses.asdict`` of a report is JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PhaseEnergy:
    """Energy of one stretch of time; null where ``reason`` says why.

    joules: of the energy counter where the source has one, else of integrated power. Both are told
    beside it. mean_w: ``joules / seconds``. peak_w: the highest power sample. samples: of power, or
    moves of the counter. coverage: the share, 0 to 1, that samples cover without a gap.
    """

    seconds: float
    joules: float | None
    counter_joules: float | None
    integrated_joules: float | None
    mean_w: float | None
    peak_w: float | None
    samples: int
    coverage: float
    reason: str | None

    def because(self, trouble: str) -> PhaseEnergy:
        """The same, with the sensor's own words at the end of the reason."""
        return replace(self, reason=f"{self.reason} ({trouble})")


@dataclass(frozen=True)
class Stretch:
    """What ran from ``begin`` to ``end``, in seconds. phase: "prefill" or "decode"."""

    phase: str
    begin: float
    end: float


@dataclass(frozen=True)
class Idle:
    """The baseline, measured before the work. It is never subtracted."""

    seconds: float
    mean_w: float | None
    samples: int
    reason: str | None


@dataclass(frozen=True)
class EnergyReport(PhaseEnergy):
    """Energy of a window, prefill and decoding together, and what it is made of.

    joules_per_token: joules of decoding over the generated tokens. total_is: the rail that is the
    total, or "sum of" the rails named; None where there was no reading. rails: mean mW of each.
    idle: None where it was not measured. sampling_share: processor time of the sampling thread over
    the window's seconds; children that some sources have are not in it.
    """

    joules_per_token: float | None
    source: str
    total_is: str | None
    rails: dict[str, float | None]
    prefill: PhaseEnergy
    decode: PhaseEnergy
    idle: Idle | None
    sampling_share: float | None


def joined(parts: Sequence[PhaseEnergy]) -> PhaseEnergy:
    """Stretches taken together, of one or more. Where one has no joules, there are none, and its
    reason is that of all."""
    if len(parts) == 1:
        return parts[0]
    seconds = math.fsum(part.seconds for part in parts)
    joules = _sum([part.joules for part in parts])
    covered = math.fsum(part.coverage * part.seconds for part in parts)
    peaks = [part.peak_w for part in parts if part.peak_w is not None]
    return PhaseEnergy(
        seconds=seconds,
        joules=joules,
        counter_joules=_sum([part.counter_joules for part in parts]),
        integrated_joules=_sum([part.integrated_joules for part in parts]),
        mean_w=None if joules is None or not seconds else joules / seconds,
        peak_w=max(peaks) if len(peaks) == len(parts) else None,
        samples=sum(part.samples for part in parts),
        coverage=covered / seconds if seconds else 0.0,
        reason=next((part.reason for part in parts if part.reason is not None), None),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def joules_per_token(joules: float | None, tokens: int) -> float | None:
    """Joules a token; None where there is no figure, or no token."""
    return joules / tokens if joules is not None and tokens > 0 else None
