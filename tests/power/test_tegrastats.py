"""tegrastats: every published line parses, from a file and from the command."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bitmtp_edge.power.source import SourceError, Where
from bitmtp_edge.power.tegrastats import Tegrastats, rails_of

from . import trees

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
