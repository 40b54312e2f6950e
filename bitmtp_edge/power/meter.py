"""The meter: samples a source on a thread of its own, and tells what a window of time took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from .report import EnergyReport, Idle, PhaseEnergy, tokens_per
from .source import Reading, Source, SourceError
from .trace import Integral, Point, count, integrate

# Two samples further apart than so many of the sensor's periods, and than so many seconds (a busy
# machine wakes a thread late), have a gap between them.
GAP_PERIODS = 4
GAP_S = 0.25


class Meter:
    """Energy of what runs between two moments. A context manager: sampling lasts as long as it.

        with Meter(open_source(order=METER_ORDER_GPU)) as meter:
            meter.measure_idle(2.0)
            window = meter.begin()
            ...                       # read the prompt
            window.mark_decode()
            ...                       # decode
            energy = window.end(generated_tokens)

    One window at a time: what was sampled before a window begins is forgotten then. The source is
    closed at the end. clock, sleep: for tests; the clock must be the one that the readings' stamps
    are of.
    """

    def __init__(
        self,
        source: Source,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.source = source
        self.idle: Idle | None = None
        self.gap_s = max(GAP_S, GAP_PERIODS * max(source.poll_s, source.update_s))
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._readings: list[Reading] = []
        self._trouble: tuple[float, str] | None = None  # the newest, and when
        self._thread_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="power meter", daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(self.gap_s)  # one that a sensor holds is left to it
        self.source.close()

    def measure_idle(self, seconds: float) -> Idle:
        """Waits so long, and keeps what that took as the baseline of the reports to come."""
        start = self._started()
        self._sleep(seconds)
        end = self._clock()
        energy = self._energy(start, end)
        self.idle = Idle(energy.seconds, energy.mean_w, energy.samples, energy.reason)
        return self.idle

    def begin(self) -> Window:
        """A window from now on. Waits for a sample before it, where none has come yet."""
        start = self._started()
        with self._lock:
            old = [reading.at < start - 2 * self.gap_s for reading in self._readings]
            del self._readings[: sum(old)]
            thread_s = self._thread_s
        return Window(self, start, thread_s)

    def take(self) -> None:
        """One sample. What the thread does, and what a test does in its place."""
        try:
            reading = self.source.read()
        except SourceError as error:
            self._note_trouble(str(error))
            return
        with self._lock:
            newest = self._readings[-1] if self._readings else reading
            if reading.at > newest.at or newest is reading:
                if reading.total_is == newest.total_is:
                    self._readings.append(reading)
                    return
                told = f"the total was {newest.total_is} and is {reading.total_is}"
            else:
                return  # the same as before: the sensor has nothing new
        self._note_trouble(told)

    def _sample(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            try:
                self.take()
            except Exception as error:  # told in the report's reason; the run goes on
                self._note_trouble(f"{type(error).__name__}: {error}")
            with self._lock:
                self._thread_s = time.thread_time()
            due = max(due + self.source.poll_s, time.monotonic())
            self._stop.wait(due - time.monotonic())

    def _note_trouble(self, what: str) -> None:
        with self._lock:
            self._trouble = self._clock(), what

    def _started(self) -> float:
        """Now, once there is a sample before; of a counter, one that has moved."""
        self._wait_until(_opens, self._clock())
        return self._clock()

    def _wait_until(self, holds: Callable[[list[Reading]], bool], since: float) -> None:
        """Until a gap's time has passed, after which it would not help."""
        while self._clock() < since + self.gap_s:
            with self._lock:
                if holds(self._readings):
                    return
            self._sleep(self.source.poll_s / 4)

    def _energy(self, start: float, end: float) -> PhaseEnergy:
        self._wait_until(lambda readings: _closes(readings, end), end)
        with self._lock:
            readings, trouble = list(self._readings), self._trouble
        powers = [Point(reading.at, reading.total_mw / 1000) for reading in readings]
        power = integrate(powers, start, end, self.gap_s)
        counters = [Point(r.at, r.joules) for r in readings if r.joules is not None]
        counter = count(counters, start, end, self.gap_s) if counters else None
        energy = self._phase(start, end, power, counter)
        if energy.reason and trouble and trouble[0] >= start - self.gap_s:
            return energy.because(trouble[1])
        return energy

    def _phase(
        self, start: float, end: float, power: Integral, counter: Integral | None
    ) -> PhaseEnergy:
        used = power if counter is None else counter
        seconds = max(0.0, end - start)
        return PhaseEnergy(
            seconds=seconds,
            joules=used.joules,
            counter_joules=None if counter is None else counter.joules,
            integrated_joules=None if self.source.counter_only else power.joules,
            mean_w=None if used.joules is None else used.joules / seconds,
            peak_w=power.peak_w,
            samples=used.samples,
            coverage=used.coverage,
            reason=used.reason,
        )

    def _rails(self, start: float, end: float) -> dict[str, float | None]:
        """Mean mW of every rail of the window; None where it was not there all the time."""
        with self._lock:
            readings = list(self._readings)
        means: dict[str, float | None] = {}
        for name in dict.fromkeys(name for reading in readings for name in reading.rails):
            points = [Point(r.at, r.rails[name]) for r in readings if name in r.rails]
            total = integrate(points, start, end, self.gap_s).joules
            means[name] = None if total is None else total / (end - start)
        return means


class Window:
    """What began with :meth:`Meter.begin`: prefill until :meth:`mark_decode`, then decoding."""

    def __init__(self, meter: Meter, start: float, thread_s: float) -> None:
        self._meter = meter
        self._start = start
        self._decode = start
        self._thread_s = thread_s

    def mark_decode(self) -> None:
        """Prefill ends here. Without a mark, all is decoding."""
        self._decode = self._meter._clock()

    def end(self, generated_tokens: int) -> EnergyReport:
        """What the window took until now. Waits for the sample after it: one period of the sensor,
        or where it has stopped, until that is certain."""
        meter, end = self._meter, self._meter._clock()
        whole = meter._energy(self._start, end)
        prefill = meter._energy(self._start, self._decode)
        decode = meter._energy(self._decode, end)
        with meter._lock:
            first = meter._readings[0] if meter._readings else None
            busy = meter._thread_s - self._thread_s
        return EnergyReport(
            **vars(whole),
            joules_per_token=tokens_per(decode.joules, generated_tokens),
            source=meter.source.name,
            total_is=None if first is None else first.total_is,
            rails=meter._rails(self._start, end),
            prefill=prefill,
            decode=decode,
            idle=meter.idle,
            sampling_share=busy / whole.seconds if whole.seconds else None,
        )


def _opens(readings: list[Reading]) -> bool:
    return bool(readings) and (
        readings[0].joules is None or readings[0].joules != readings[-1].joules
    )


def _closes(readings: list[Reading], end: float) -> bool:
    """Whether there is a sample after ``end``; of a counter, one that has moved since."""
    if not readings or readings[-1].at < end:
        return False
    if readings[-1].joules is None:
        return True
    before = next((each for each in reversed(readings) if each.at <= end), readings[0])
    return readings[-1].joules != before.joules
