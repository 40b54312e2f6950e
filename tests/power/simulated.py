"""A meter whose time and samples the test makes, and sources of known power."""

from __future__ import annotations

from collections.abc import Callable

from bitmtp_edge.power.meter import Meter
from bitmtp_edge.power.report import EnergyReport
from bitmtp_edge.power.source import Reading, Source, SourceError

PERIOD = 0.05


class Bench:
    """A meter without its thread: samples are taken, and time passes, when somebody sleeps."""

    def __init__(self, source: Simulated) -> None:
        self.source = source
        source.bench = self
        self.now = 1000.0
        self.meter = Meter(source, clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        """Passes time, a sample every period of the source."""
        end = self.now + seconds
        while self.now < end:
            due = self.source.last + self.source.poll_s
            self.now = max(self.now, min(end, due))
            if self.now >= due:
                self.source.last = self.now
                self.meter.tick()

    def run(self, prefill: float = 1, decode: float = 2, tokens: int = 10) -> EnergyReport:
        self.sleep(1)
        window = self.meter.begin()
        self.sleep(prefill)
        window.mark_decode()
        self.sleep(decode)
        return window.end(tokens)


class Simulated(Source):
    """10 W, of which 8 W are the chip's; ``watts`` of the time may say otherwise."""

    name = "simulated"

    def __init__(self, watts: Callable[[float], float] = lambda at: 10.0) -> None:
        self.poll_s = self.update_s = PERIOD
        self.watts = watts
        self.last = 0.0
        self.closed = False
        self.bench = Bench.__new__(Bench)
        self.bench.now = 1000.0

    def read(self) -> Reading:
        now = self.bench.now
        milliwatts = 1000 * self.watts(now)
        rails = {"VDD_IN": milliwatts, "VDD_CPU_GPU_CV": 0.8 * milliwatts}
        return self.board_reading(rails, now)

    def close(self) -> None:
        self.closed = True


class Failing(Simulated):
    """Fails at the moments for which ``fails`` holds."""

    def __init__(self, fails: Callable[[float], bool]) -> None:
        super().__init__()
        self.fails = fails

    def read(self) -> Reading:
        if self.fails(self.bench.now):
            raise SourceError("Input/output error")
        return super().read()
