"""A meter whose every figure is known: 2 W, half a second of prefill, and 0.1 s a token."""

from __future__ import annotations

from dataclasses import dataclass, field

from bitmtp_edge.power.metering import Metering
from bitmtp_edge.power.report import EnergyReport, PhaseEnergy, Stretch
from bitmtp_edge.power.source import Reading

BEGAN, WATTS, IDLE = 100.0, 2.0, 0.5
PREFILL_S, TOKEN_S = 0.5, 0.1
LEAST_TOKENS = 5  # a shorter reply gives no figure
SHORT = "2 samples in 0.1 s: at least 5 are needed"


@dataclass
class FakeMetering(Metering):
    """calls: what was done with its windows."""

    meter: None = None
    watts: float = WATTS
    calls: list[str] = field(default_factory=list)
    reason: str | None = None
    closed: bool = False

    @property
    def source(self) -> str:
        return "fake"

    @property
    def least_s(self) -> float:
        return 0.0

    def measure_idle(self, seconds: float) -> float:
        self.calls.append("idle")
        return IDLE

    def begin(self) -> FakeWindow:  # type: ignore[override]
        self.calls.append("begin")
        return FakeWindow(self)

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeWindow:
    """Prompts of half a second, and their tokens spread over them evenly."""

    metering: FakeMetering
    prompts: int = 1
    readings: list[Reading] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)

    def mark_decode(self) -> None:
        self.metering.calls.append("decode")

    def mark_prefill(self) -> None:
        self.metering.calls.append("prefill")
        self.prompts += 1

    def abandon(self) -> None:
        self.metering.calls.append("abandon")

    def end(self, tokens: int) -> EnergyReport:
        self.metering.calls.append(f"end {tokens}")
        watts = self.metering.watts
        decode = phase(TOKEN_S * tokens, watts, None if tokens >= LEAST_TOKENS else SHORT)
        at = BEGAN
        for _ in range(self.prompts):
            middle, end = at + PREFILL_S, at + PREFILL_S + decode.seconds / self.prompts
            self.stretches += [Stretch("prefill", at, middle), Stretch("decode", middle, end)]
            at = end
        self.readings = [
            Reading(when, {"VDD_IN": 1000 * watts}, 1000 * watts, "VDD_IN", "fake")
            for when in (BEGAN - 0.1, BEGAN, at, at + 0.1)
        ]
        return EnergyReport(
            **vars(phase(at - BEGAN, watts, decode.reason)),
            joules_per_token=None if decode.joules is None else decode.joules / tokens,
            source="fake",
            total_is="VDD_IN",
            rails={"VDD_IN": 1000 * watts},
            prefill=phase(PREFILL_S * self.prompts, watts, None),
            decode=decode,
            idle=None,
            sampling_share=0.0,
        )


def phase(seconds: float, watts: float, reason: str | None) -> PhaseEnergy:
    joules = None if reason else watts * seconds
    mean = None if reason else watts
    return PhaseEnergy(seconds, joules, None, joules, mean, mean, 9, 1.0, reason)
