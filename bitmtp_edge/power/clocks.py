"""Clocks and temperatures of a board, and whether something held it down while work ran."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

from .ina3221 import find_rails
from .sysfs import number_or_none, text_or_none

WATCH_S = 0.5

# JetPack 5 has 17000000.ga10b, JetPack 6 17000000.gpu, Thor gpu-gpc-0.
_GPU = re.compile(r"gpu|\.g[abpmv]\w\wb$")
_DEVFREQ = (
    "sys/class/devfreq/*",
    "sys/devices/*/devfreq/*",
    "sys/devices/platform/*/devfreq/*",
    "sys/devices/platform/bus@0/*/devfreq/*",
)
_EMC = "sys/kernel/debug/bpmp/debug/clk/emc/rate"  # root alone may read it
_CPU = "sys/devices/system/cpu/cpu[0-9]*/cpufreq"
_EVENTS = {
    "oc1_event_cnt": "under-voltage",
    "oc2_event_cnt": "average over-current",
    "oc3_event_cnt": "instantaneous over-current",
}
_ZONES = "sys/class/thermal/thermal_zone*"
_MOST_HZ = 10**11
_MOST_MILLIDEGREES = 500_000
_COOLING = re.compile(r"throttle|cpufreq|devfreq")  # not fans


@dataclass(frozen=True)
class Clocks:
    """Clocks now, in MHz; None where the machine does not tell.

    jetson_clocks: whether clocks are pinned as that command does it, the GPU's and every core's
    lowest and highest being equal. events: how often since the start of the machine each kind of
    event made the hardware throttle. throttled_by: what holds clocks down now. celsius:
    temperatures by sensor. tells_throttling: whether anything would tell that clocks are held down.
    """

    gpu_mhz: float | None
    gpu_min_mhz: float | None
    gpu_max_mhz: float | None
    emc_mhz: float | None
    jetson_clocks: bool | None
    events: dict[str, int]
    throttled_by: list[str]
    celsius: dict[str, float] = field(default_factory=dict)
    tells_throttling: bool = False


@dataclass(frozen=True)
class Seen:
    """Lowest, mean and highest of what was seen, in MHz."""

    lowest: float
    mean: float
    highest: float


@dataclass(frozen=True)
class ClockReport:
    """Clocks of a run. jetson_clocks: None where it is unknown, or changed. throttled_by: all that
    held clocks down at some look. events: of each kind, those of the run. celsius: the highest of
    each sensor. tells_throttling: as of :class:`Clocks`, at some look."""

    looks: int
    gpu_mhz: Seen | None
    emc_mhz: Seen | None
    jetson_clocks: bool | None
    events: dict[str, int]
    throttled_by: list[str]
    celsius: dict[str, float] = field(default_factory=dict)
    tells_throttling: bool = False


class Clocked(Protocol):
    """What tells clocks."""

    def read(self) -> Clocks:
        """Those of now."""


@dataclass
class ClockReader:
    """Where the files of ``root`` are, found once."""

    root: Path
    _gpu: Path | None = field(init=False)
    _alarms: list[tuple[str, Path]] = field(init=False)
    _events: list[tuple[str, Path]] = field(init=False)
    _cooling: list[tuple[str, Path]] = field(init=False)
    _zones: list[tuple[str, Path]] = field(init=False)

    def __post_init__(self) -> None:
        folders = (folder for pattern in _DEVFREQ for folder in sorted(self.root.glob(pattern)))
        gpus = (folder for folder in folders if _GPU.search(folder.name))
        self._gpu = next((each for each in gpus if (each / "cur_freq").exists()), None)
        self._alarms = [
            (f"{rail.name} current", Path(alarm))
            for rail in find_rails(self.root)
            for alarm in rail.alarms
        ]
        self._events = [
            (what, folder / name)
            for folder in sorted(self.root.glob("sys/class/hwmon/hwmon*"))
            if text_or_none(folder / "name") == "soctherm_oc"
            for name, what in _EVENTS.items()
        ]
        self._cooling = [
            (kind, folder / "cur_state")
            for folder in sorted(self.root.glob("sys/class/thermal/cooling_device*"))
            if (kind := text_or_none(folder / "type")) and _COOLING.search(kind)
        ]
        self._zones = [
            (kind, folder / "temp")
            for folder in sorted(self.root.glob(_ZONES))
            if (kind := text_or_none(folder / "type"))
        ]

    def read(self) -> Clocks:
        """All of them, now."""
        now, low, high = (
            None if self._gpu is None else _megahertz(self._gpu / f"{which}_freq")
            for which in ("cur", "min", "max")
        )
        counts = [(what, number_or_none(file)) for what, file in self._events]
        active = [(what, number_or_none(file)) for what, file in (*self._alarms, *self._cooling)]
        heat = ((zone, number_or_none(file, _MOST_MILLIDEGREES)) for zone, file in self._zones)
        return Clocks(
            gpu_mhz=now,
            gpu_min_mhz=low,
            gpu_max_mhz=high,
            emc_mhz=_megahertz(self.root / _EMC),
            jetson_clocks=self._pinned(low, high),
            events={what: number for what, number in counts if number is not None},
            throttled_by=_once(what for what, number in active if (number or 0) > 0),
            celsius={zone: number / 1000 for zone, number in heat if number is not None},
            tells_throttling=any(number is not None for _, number in (*counts, *active)),
        )

    def _pinned(self, low: float | None, high: float | None) -> bool | None:
        if low is None or high is None:
            return None
        cores = self.root.glob(_CPU)
        return low == high and all(
            text_or_none(core / "scaling_min_freq") == text_or_none(core / "scaling_max_freq")
            for core in cores
        )


class ClockWatch:
    """Looks at the clocks twice a second for as long as its block lasts; ``report()`` after it.
    reader: who tells them, in place of the files of ``root``."""

    def __init__(
        self, root: Path = Path("/"), every_s: float = WATCH_S, reader: Clocked | None = None
    ) -> None:
        self._reader = ClockReader(root) if reader is None else reader
        self._every_s = every_s
        self._looks: list[Clocks] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="clock watch", daemon=True)

    def __enter__(self) -> ClockWatch:
        self._looks.append(self._reader.read())
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._looks.append(self._reader.read())

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            self._looks.append(self._reader.read())

    def report(self) -> ClockReport:
        """Of all looks so far."""
        looks = list(self._looks)
        first, last = looks[0], looks[-1]
        pinned = {look.jetson_clocks for look in looks}
        return ClockReport(
            looks=len(looks),
            gpu_mhz=_seen(look.gpu_mhz for look in looks),
            emc_mhz=_seen(look.emc_mhz for look in looks),
            jetson_clocks=pinned.pop() if len(pinned) == 1 else None,
            events={
                what: number - first.events[what]
                for what, number in last.events.items()
                if what in first.events
            },
            throttled_by=_once(what for look in looks for what in look.throttled_by),
            celsius={
                sensor: max(look.celsius[sensor] for look in looks if sensor in look.celsius)
                for sensor in _once(each for look in looks for each in look.celsius)
            },
            tells_throttling=any(look.tells_throttling for look in looks),
        )


def _megahertz(file: Path) -> float | None:
    hertz = number_or_none(file, _MOST_HZ)
    return None if hertz is None else hertz / 1e6


def _seen(values: Iterable[float | None]) -> Seen | None:
    known = [value for value in values if value is not None]
    return Seen(min(known), sum(known) / len(known), max(known)) if known else None


def _once(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
