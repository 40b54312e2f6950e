"""What a meter tells of a window. ``dataclasses.asdict`` of a report is JSON."""

from __future__ import annotations

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


def joules_per_token(joules: float | None, tokens: int) -> float | None:
    """Joules a token; None where there is no figure, or no token."""
    return joules / tokens if joules is not None and tokens > 0 else None
