"""RAPL: counters of packages and memory, their wrap, and permissions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bitmtp_edge.power.rapl import Rapl
from bitmtp_edge.power.source import SourceError, Where
from bitmtp_edge.power.sysfs import read_number

from . import trees

ZONES = {
    "intel-rapl:0": ("package-0", 500_000),
    "intel-rapl:0:0": ("core", 300_000),
    "intel-rapl:0:1": ("dram", 100_000),
    "intel-rapl:1": ("package-1", 900_000),
    "intel-rapl:2": ("psys", 900_000),
    "intel-rapl-mmio:0": ("package-0", 500_000),
}


class Machine:
    """Time that passes only when somebody sleeps, and the counters that go up with it."""

    def __init__(self, root: Path, zones: dict[str, tuple[str, int]]) -> None:
        self.now = 100.0
        self.watts: dict[str, int] = {}
        self.counters = trees.powercap(root, zones)
        self.source = Rapl(Where(root), clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for folder, watts in self.watts.items():
            counter = self.counters[folder]
            total = read_number(counter) + round(watts * seconds * 1e6)
            trees.write(counter, total % 1_000_000)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Machine]:
    return lambda zones=ZONES: Machine(tmp_path, zones)


def test_packages_and_memory(machine: Callable[..., Machine]) -> None:
    here = machine()
    here.watts = {"intel-rapl:0": 4, "intel-rapl:0:0": 3, "intel-rapl:0:1": 1, "intel-rapl:1": 2}
    here.sleep(0.1)
    reading = here.source.read()
    assert reading.rails == {
        "package-0": pytest.approx(4000),
        "package-0 dram": pytest.approx(1000),
        "package-1": pytest.approx(2000),
    }
    assert reading.total_mw == pytest.approx(7000)
    assert reading.total_is == "sum of package-0, package-0 dram, package-1"
    assert reading.joules == pytest.approx(0.7)
    assert reading.at == here.now
    assert here.source.counter_only


def test_a_counter_that_wraps(machine: Callable[..., Machine]) -> None:
    here = machine({"intel-rapl:0": ("package-0", 900_000)})
    here.watts = {"intel-rapl:0": 8}
    for step in range(1, 4):
        here.sleep(0.1)
        reading = here.source.read()
        assert reading.total_mw == pytest.approx(8000)
        assert reading.joules == pytest.approx(0.8 * step)
    assert reading.total_is == "package-0"


def test_a_first_reading_waits_for_the_counter(machine: Callable[..., Machine]) -> None:
    here = machine({"intel-rapl:0": ("package-0", 0)})
    here.watts = {"intel-rapl:0": 8}
    assert here.source.read().total_mw == pytest.approx(8000)
    assert here.now > 100


def test_a_counter_that_stands_still(machine: Callable[..., Machine]) -> None:
    with pytest.raises(SourceError, match=r"have stood still for 0\.05 s"):
        machine().source.read()


def test_a_counter_that_runs_backwards(machine: Callable[..., Machine], tmp_path: Path) -> None:
    here = machine({"intel-rapl:0": ("package-0", 900_000)})
    here.source._zones[0].wrap = 0
    trees.write(here.counters["intel-rapl:0"], 5)
    with pytest.raises(SourceError, match="ran backwards"):
        here.source.read()


def test_no_permission(machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("bitmtp_edge.power.sysfs.read_text", refuse)
    monkeypatch.setattr("bitmtp_edge.power.rapl.text_or_none", lambda path: "package-0")
    with pytest.raises(
        SourceError, match=r"^no permission: sudo chmod a\+r .*/intel-rapl:\*/energy_uj$"
    ):
        machine()


def test_none_here(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no package counter under"):
        Rapl(Where(tmp_path))


@pytest.mark.parametrize(
    ("counter", "told"), [(-5_000_000, r"reads -"), (10**17, r"reads 1e\+15 mW, which cannot be")]
)
def test_power_that_cannot_be(counter: int, told: str, machine: Callable[..., Machine]) -> None:
    """And no window spans it: joules run backwards there."""
    here = machine({"intel-rapl:0": ("package-0", 0)})
    here.watts = {"intel-rapl:0": 8}
    first = here.source.read().joules
    trees.write(here.counters["intel-rapl:0"], counter)
    here.watts, here.now = {}, here.now + 0.1
    with pytest.raises(SourceError, match=told):
        here.source.read()
    here.source._zones[0].last = 0
    trees.write(here.counters["intel-rapl:0"], 500_000)
    here.now += 0.1
    then = here.source.read().joules
    assert first is not None and then is not None and then < first
