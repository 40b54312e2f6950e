"""The meter: samples a source on a thread of its own, and tells what a window of time took."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from .report import EnergyReport, Idle, PhaseEnergy, Stretch, joined, joules_per_token
from .source import Reading, Source, SourceError
from .trace import MIN_SAMPLES, Integral, Point, between_moves, count, integrate

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

    One window at a time: samples from before it are forgotten. The source is closed at the end.
    clock, sleep: for tests; the clock must be the one that the readings' stamps
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
        self._counts = source.counter() is not None
        self._readings: deque[Reading] = deque()
        self._moves: deque[Point] = deque()  # of a counter that is looked at around edges alone
        self._look = False  # at the counter, until it moves
        self._keep_from: float | None = None
        self._trouble: tuple[float, str] | None = None  # the newest, and when
        self.thread_s = 0.0  # processor time that sampling took so far
        self._stopped = False
        self._wake = threading.Event()
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
        self._stopped = True
        self._wake.set()
        self._thread.join(self.gap_s)  # one that a sensor holds is left to it
        self.source.close()

    def now(self) -> float:
        """Seconds on the clock of the readings."""
        return self._clock()

    def mark(self) -> float:
        """Now, as an end of a stretch to be measured."""
        at = self.now()
        if self._counts:
            self._look = True
            self._wake.set()
        return at

    def measure_idle(self, seconds: float) -> Idle:
        """Waits so long, and keeps what that took as the baseline of the reports to come. What was
        before counts for nothing: another load, or another power mode."""
        self._settle()
        start = self._keep_from = self._ready()
        self._sleep(seconds)
        energy = self.energy(start, self.mark())
        self._keep_from = None
        self.idle = Idle(energy.seconds, energy.mean_w, energy.samples, energy.reason)
        return self.idle

    def begin(self) -> Window:
        """A window from now on. Waits for a sample before it, where none has come yet."""
        start = self._keep_from = self._ready()
        return Window(self, start)

    def release(self) -> None:
        """No window is open: older samples may go."""
        self._keep_from = None

    def readings(self) -> list[Reading]:
        """Those since shortly before the open window, in order of time; without one the newest."""
        with self._lock:
            return list(self._readings)

    def energy(self, start: float, end: float) -> PhaseEnergy:
        """What a stretch of the open window took, once there is a sample after it. Its ends are to
        have been marked."""
        if not self._too_short(start, end):
            self._wait_until(lambda: _closes(self._readings, end) and self._has_moved(end), end)
        readings, trouble = self.readings(), self._trouble
        powers = [Point(reading.at, reading.total_mw / 1000) for reading in readings]
        power = integrate(powers, start, end, self.gap_s)
        counters = [Point(r.at, r.joules) for r in readings if r.joules is not None]
        counter = count(counters, start, end, self.gap_s) if counters else None
        if self._counts:
            moves, update = list(self._moves), self.source.update_s
            counter = between_moves(moves, powers, start, end, self.gap_s, update)
        energy = self._phase(start, end, power, counter)
        if energy.reason and trouble and trouble[0] >= start - self.gap_s:
            return energy.because(trouble[1])
        return energy

    def rails(self, start: float, end: float) -> dict[str, float | None]:
        """Mean mW of every rail in the stretch; None where it was not there all the time."""
        readings = self.readings()
        means: dict[str, float | None] = {}
        for name in dict.fromkeys(name for reading in readings for name in reading.rails):
            points = [Point(r.at, r.rails[name]) for r in readings if name in r.rails]
            total = integrate(points, start, end, self.gap_s).joules
            means[name] = None if total is None else total / (end - start)
        return means

    def take(self) -> None:
        """One sample."""
        try:
            reading = self.source.read()
        except SourceError as error:
            self._note_trouble(str(error))
            return
        with self._lock:
            newest = self._readings[-1] if self._readings else None
            if newest is not None and reading.at <= newest.at:
                return  # the sensor has nothing new
            if newest is not None and reading.total_is != newest.total_is:
                self._note_trouble(f"the total was {newest.total_is} and is {reading.total_is}")
                return
            self._readings.append(reading)
            needed = (reading.at if self._keep_from is None else self._keep_from) - 2 * self.gap_s
            for kept in (self._readings, self._moves):
                while kept and kept[0].at < needed:
                    kept.popleft()

    def tick(self) -> None:
        """What the thread does each time it wakes, and what a test does in its place."""
        self.take()
        if self._look:
            self._look = False
            self._see_a_move()

    def _see_a_move(self) -> None:
        """Reads the counter until it moves, which it did between the last two readings."""
        deadline = self.now() + self.gap_s
        before: Point | None = None
        while self.now() < deadline and not self._stopped:
            began = self.now()
            try:
                joules = self.source.counter()
            except SourceError as error:
                return self._note_trouble(str(error))
            assert joules is not None
            read = Point((began + self.now()) / 2, joules)
            if before is not None and read.value != before.value:
                with self._lock:
                    self._moves.append(Point((before.at + read.at) / 2, joules))
                return None
            before = read
            self.take()
        return self._note_trouble(f"the counter has stood still for {self.gap_s:g} s")

    def _sample(self) -> None:
        due = time.monotonic()
        while not self._stopped:
            try:
                self.tick()
            except Exception as error:  # told in the report's reason; the run goes on
                self._note_trouble(f"{type(error).__name__}: {error}")
            self.thread_s = time.thread_time()
            due = max(due + self.source.poll_s, time.monotonic())
            self._wake.wait(due - time.monotonic())
            self._wake.clear()

    def _note_trouble(self, what: str) -> None:
        self._trouble = self.now(), what

    def _settle(self) -> None:
        """Forgets what was seen until a period from now: what the sensor tells before that may be
        of the time before."""
        self._sleep(max(self.source.poll_s, self.source.update_s))
        with self._lock:
            self._readings.clear()
            self._moves.clear()

    def _ready(self) -> float:
        """Now, once there is a sample before; of a counter, one that has moved."""
        began = self.mark()
        self._wait_until(lambda: _opens(self._readings) and self._has_moved(began), began)
        return self.now()

    def _has_moved(self, since: float) -> bool:
        """Whether the counter was seen to, and power is known until then."""
        if not self._counts:
            return True
        return bool(self._moves) and since <= self._moves[-1].at <= self._readings[-1].at

    def _too_short(self, start: float, end: float) -> bool:
        """Whether a counter tells nothing of the stretch, however long one waits."""
        return self._counts and end - start < MIN_SAMPLES * self.source.update_s

    def _wait_until(self, holds: Callable[[], bool], since: float) -> None:
        """Until a gap's time has passed, after which it would not help."""
        while self.now() < since + self.gap_s:
            with self._lock:
                if holds():
                    return
            self._sleep(self.source.poll_s / 4)

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


class Window:
    """What began with :meth:`Meter.begin`: prefill until :meth:`mark_decode`, then decoding, until
    :meth:`mark_prefill` begins another prefill.

    readings, stretches: after :meth:`end`, the samples that it is made of, with a few before and
    after, and what ran when.
    """

    def __init__(self, meter: Meter, start: float) -> None:
        self.readings: list[Reading] = []
        self.stretches: list[Stretch] = []
        self._marks: list[tuple[str, float]] = [("prefill", start)]
        self._meter = meter
        self._thread_s = meter.thread_s

    def mark_decode(self) -> None:
        """Prefill ends here. Without a mark, all is decoding."""
        self._marks.append(("decode", self._meter.mark()))

    def mark_prefill(self) -> None:
        """Decoding ends here, and another prompt is read."""
        self._marks.append(("prefill", self._meter.mark()))

    def abandon(self) -> None:
        """The window ends without a report."""
        self._meter.release()

    def end(self, generated_tokens: int) -> EnergyReport:
        """What the window took until now. Waits for the sample after it: one period of the sensor,
        or where it has stopped, until that is certain."""
        meter, end = self._meter, self._meter.mark()
        busy = meter.thread_s - self._thread_s
        if len(self._marks) == 1:
            self._marks.append(("decode", self._marks[0][1]))
        start = self._marks[0][1]
        edges = [at for _, at in self._marks[1:]] + [end]
        marks = zip(self._marks, edges, strict=True)
        self.stretches = [Stretch(phase, at, until) for (phase, at), until in marks]
        whole = meter.energy(start, end)
        prefill, decode = (
            joined([meter.energy(s.begin, s.end) for s in self.stretches if s.phase == phase])
            for phase in ("prefill", "decode")
        )
        rails = meter.rails(start, end)
        self.readings = meter.readings()
        meter.release()
        return EnergyReport(
            **vars(whole),
            joules_per_token=joules_per_token(decode.joules, generated_tokens),
            source=meter.source.name,
            total_is=self.readings[0].total_is if self.readings else None,
            rails=rails,
            prefill=prefill,
            decode=decode,
            idle=meter.idle,
            sampling_share=busy / whole.seconds if whole.seconds else None,
        )


def _opens(readings: Sequence[Reading]) -> bool:
    return bool(readings) and (
        readings[0].joules is None or readings[0].joules != readings[-1].joules
    )


def _closes(readings: Sequence[Reading], end: float) -> bool:
    """Whether there is a sample after ``end``; of a counter, one that has moved since."""
    if not readings or readings[-1].at < end:
        return False
    if readings[-1].joules is None:
        return True
    before = next((each for each in reversed(readings) if each.at <= end), readings[0])
    return readings[-1].joules != before.joules
