"""tegrastats: every published line parses, from a file and from the command."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bitmtp_edge.power.source import Reading, SourceError, Where
from bitmtp_edge.power.tegrastats import PERIOD_S, POLL_S, UPDATE_S, Tegrastats, rails_of
from bitmtp_edge.step_power import UPDATES

from . import trees
from .simulated import Bench, Simulated

LINES = (Path(__file__).parent / "data/tegrastats.txt").read_text().splitlines()
NANO = ["VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"]
EXPECTED = [
    ({"VDD_GPU_SOC": 5139, "VDD_CPU_CV": 3268, "VIN_SYS_5V0": 5500}, 13907),
    (dict(zip(NANO, (4548, 483, 1489), strict=True)), 4548),
    ({"VDD_IN": 7280}, 7280),
    (dict(zip(NANO, (12479, 4667, 2817), strict=True)), 12479),
    (dict(zip(NANO, (4824, 518, 1475), strict=True)), 4824),
    (dict(zip(NANO, (4046, 720, 1201), strict=True)), 4046),
    (dict(zip(NANO, (4761, 515, 1428), strict=True)), 4761),
    (
        {"VDD_GPU_SOC": 3150, "VDD_CPU_CV": 14312, "VIN_SYS_5V0": 4968, "VDDQ_VDD2_1V8AO": 1091},
        23521,
    ),
]


@pytest.mark.parametrize(("line", "expected"), list(zip(LINES, EXPECTED, strict=False)))
def test_every_line(line: str, expected: tuple[dict[str, int], int], tmp_path: Path) -> None:
    (tmp_path / "log").write_text(line)
    reading = Tegrastats(Where(tegrastats=tmp_path / "log")).read()
    rails, total = expected
    assert reading.rails == rails
    assert reading.total_mw == total
    assert reading.total_is == ("VDD_IN" if "VDD_IN" in rails else "sum of " + ", ".join(rails))


def test_a_line_without_power() -> None:
    assert len(LINES) == len(EXPECTED) + 1
    assert rails_of(LINES[-1]) == {}


@pytest.mark.parametrize(
    "line",
    [
        "# VDD_IN 4046mW/4236mW",
        "NC 0mW/0mW",
        "RAM 974/7546MB (lfb 6x4MB) SWAP 0/5821MB",
        "VDD_IN 4046mW",
        "VDD_IN 4046mW/42",
        "VDD_IN 4046mW/4236mW/4236mW/1",
    ],
)
def test_what_is_no_rail(line: str) -> None:
    assert rails_of(line) == {}


def test_the_newest_line_with_power_counts(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join([*LINES, "# done", ""]))
    assert Tegrastats(Where(tegrastats=tmp_path / "log")).read().total_mw == 23521


@pytest.mark.parametrize("value", ["NC/NC", "NC/4236mW", "off", "-1mW/0mW"])
def test_a_board_whose_input_has_no_value(value: str, tmp_path: Path) -> None:
    """Its other rails are a part of what it draws. An older line does not stand for it."""
    rails = "VDD_CPU_GPU_CV 720mW/786mW VDD_SOC 1201mW/1261mW"
    (tmp_path / "log").write_text(f"{LINES[5]}\nRAM 1/2MB VDD_IN {value} {rails}\n")
    with pytest.raises(SourceError) as refused:
        Tegrastats(Where(tegrastats=tmp_path / "log")).read()
    assert str(refused.value) == (
        f"VDD_IN, which feeds the whole board, gives no value (tegrastats tells {value}), "
        "and the other rails are not the total"
    )
    (tmp_path / "log").write_text(f"RAM 1/2MB {rails}\n")
    with pytest.raises(SourceError, match=r"no value \(VDD_CPU_GPU_CV is told, and it is not\)"):
        Tegrastats(Where(tegrastats=tmp_path / "log")).read()


def test_a_rail_that_is_told_twice() -> None:
    line = "NC 0mW/0mW VDD_A 5mW/5mW NC 0mW/0mW VDD_A 7mW/7mW"
    assert rails_of(line) == {"VDD_A": 5, "VDD_A (2)": 7}


def test_a_long_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join([LINES[7]] * 1000 + [LINES[1]]))
    assert Tegrastats(Where(tegrastats=tmp_path / "log")).read().total_mw == 4548


def test_a_file_has_something_new_when_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(LINES[1])
    os.utime(log, (time.time() - 60, time.time() - 60))
    source = Tegrastats(Where(tegrastats=log))
    old = source.read()
    assert old.at == pytest.approx(time.monotonic() - 60, abs=5)
    log.write_text(LINES[2])
    assert source.read().at > old.at + 30


def test_no_power_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xff\x00 RAM 1/2MB")
    with pytest.raises(SourceError, match="has no line with power"):
        Tegrastats(Where(tegrastats=tmp_path / "log")).read()


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        Tegrastats(Where(tegrastats=tmp_path / "log")).read()


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose commands are found first."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "bin"


def test_the_command(commands: Path) -> None:
    trees.script(
        commands / "tegrastats",
        "import sys, time\n"
        "assert sys.argv[1:] == ['--interval', '100'], sys.argv\n"
        f"for line in {LINES[3:5]!r}:\n"
        "    print(line, flush=True)\n"
        "    time.sleep(0.1)\n"
        "time.sleep(60)\n",
    )
    with Tegrastats(Where()) as source:
        first = source.read()
        assert first.total_mw == 12479
        while (now := source.read()).at == first.at:
            time.sleep(0.01)
        assert now.total_mw == 4824


@pytest.mark.parametrize("late", [0.0, 0.015, 0.03])
def test_a_short_window_has_enough_lines(late: float) -> None:
    """Of a command that takes so long to print, and is late by turns."""

    class Lines(Simulated):
        def __init__(self) -> None:
            super().__init__()
            self.poll_s, self.update_s = POLL_S, UPDATE_S
            self.came = [1000.0]
            while self.came[-1] < 1060:
                jitter = 0.04 * (len(self.came) * 7 % 5 / 4 - 0.5)
                self.came.append(1000 + len(self.came) * (PERIOD_S + late) + jitter)

        def read(self) -> Reading:
            at = max((each for each in self.came if each <= self.bench.now), default=1000.0)
            return self.board_reading({"VDD_IN": 10_000}, at)

    bench = Bench(Lines())
    bench.sleep(0.5)
    for _ in range(30):
        bench.sleep(0.037)
        window = bench.meter.begin()
        bench.sleep(UPDATES * UPDATE_S)
        energy = window.end(1)
        assert (energy.mean_w, energy.reason) == (pytest.approx(10), None)


def test_a_command_that_fails(commands: Path) -> None:
    trees.script(commands / "tegrastats", "raise SystemExit(1)")
    with (
        Tegrastats(Where()) as source,
        pytest.raises(SourceError, match="ended without an answer"),
    ):
        source.read()


def test_no_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="the command is not here"):
        Tegrastats(Where())


def test_the_command_is_of_this_machine(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="it reads this machine, not"):
        Tegrastats(Where(tmp_path))
