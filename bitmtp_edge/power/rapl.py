"""RAPL: the energy counters of x86 processors, packages and their memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .source import Reading, Source, SourceError, Where
from .sysfs import number_or_none, read_number, text_or_none

POLL_S = 0.05
_MOST_MW = 1e7  # of all packages of a machine
_BREAK = 10**12  # microjoules
_SHORTEST_S = 0.05  # the counters move once a millisecond
_ZONES = "sys/class/powercap"


@dataclass
class _Zone:
    """A counter, and where it was. wrap: microjoules after which it begins again at 0."""

    name: str
    file: Path
    wrap: int
    last: int
    counted: int = 0

    def advance(self) -> int:
        """Microjoules since the last call, which must be less than one wrap ago."""
        now = read_number(self.file)
        step = now - self.last
        if step < 0:
            if not self.wrap:
                raise SourceError(f"{self.file} ran backwards")
            step += self.wrap
        self.last = now
        return step


class Rapl(Source):
    """Packages and DRAM, which packages do not hold. Cores and graphics are inside a package, psys
    around it: none of them is added."""

    name = "rapl"
    counter_only = True

    def __init__(
        self,
        where: Where,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.poll_s = self.update_s = POLL_S
        self._clock, self._sleep = clock, sleep
        self._zones = _zones(where.root / _ZONES)
        if not self._zones:
            raise SourceError(f"no package counter under {where.root / _ZONES}")
        self._last_at = clock()

    def read(self) -> Reading:
        """Power is the mean since the last reading. SourceError where no counter moves."""
        if (early := self._last_at + _SHORTEST_S - self._clock()) > 0:
            self._sleep(early)
        steps = {zone.name: zone.advance() for zone in self._zones}
        at = self._clock()
        seconds = at - self._last_at
        self._last_at = at
        if not any(steps.values()):
            raise SourceError(f"its counters have stood still for {seconds:.2f} s")
        rails = {name: step / seconds / 1000 for name, step in steps.items()}
        for name, milliwatts in rails.items():
            if not 0 <= milliwatts <= _MOST_MW:
                for zone in self._zones:  # what follows runs backwards: no window spans this
                    zone.counted -= _BREAK
                raise SourceError(f"{name} reads {milliwatts:g} mW, which cannot be")
        for zone in self._zones:
            zone.counted += steps[zone.name]
        label = next(iter(rails)) if len(rails) == 1 else "sum of " + ", ".join(rails)
        joules = sum(zone.counted for zone in self._zones) / 1e6
        return Reading(at, rails, sum(rails.values()), label, self.name, joules)


def _zones(folder: Path) -> list[_Zone]:
    found = []
    for package in sorted(folder.glob("intel-rapl:*")):
        name = text_or_none(package / "name") or ""
        if name.startswith("package"):
            parts = sorted(folder.glob(f"{package.name}:*"))
            memory = [part for part in parts if text_or_none(part / "name") == "dram"]
            found += [_zone(name, package), *(_zone(f"{name} dram", part) for part in memory)]
    return found


def _zone(name: str, folder: Path) -> _Zone:
    file = folder / "energy_uj"
    try:
        first = read_number(file)
    except SourceError as error:
        if isinstance(error.__cause__, PermissionError):
            every = folder.with_name("intel-rapl:*") / file.name  # of DRAM too
            raise SourceError(f"no permission: sudo chmod a+r {every}") from None
        raise
    return _Zone(name, file, number_or_none(folder / "max_energy_range_uj") or 0, first)
