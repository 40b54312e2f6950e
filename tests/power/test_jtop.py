"""jtop: right where it works, and out of the way within a second where it does not."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.power.jtop import Jtop, rails_of
from bitmtp_edge.power.source import SourceError, Where

from .jtop_stubs import FAILS, HANGS, LIES, NANO, rail, stub

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a stub on ``sys.path``."""

    def put(*arguments: Any, **parts: str) -> None:
        monkeypatch.syspath_prepend(str(stub(tmp_path / "site", *arguments, **parts)))

    return put


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_one_that_works(install: Install) -> None:
    install()
    with Jtop(Where()) as source:
        reading = source.read()
    assert reading.rails == {"VDD_IN": 5133, "VDD_CPU_GPU_CV": 1064, "VDD_SOC": 1540}
    assert (reading.total_mw, reading.total_is, reading.source) == (5133, "VDD_IN", "jtop")
    assert "jtop" not in sys.modules


def test_it_is_asked_again(install: Install) -> None:
    install(
        on_import="import itertools; counter = itertools.count(1000)\n",
        power="""(
        {"tot": {"power": next(counter), "name": "VDD_IN"}})""",
    )
    with Jtop(Where()) as source:
        first = source.read()
        while (later := source.read()).at == first.at:
            time.sleep(0.005)
    assert later.total_mw > first.total_mw >= 1000


def test_what_it_prints_does_no_harm(install: Install) -> None:
    install(on_import="print('{\"power\": {}}')\nimport os\nos.write(1, b'noise\\n')\n")
    with Jtop(Where()) as source:
        assert source.read().total_mw == 5133


@pytest.mark.parametrize("how", HANGS)
def test_one_that_hangs(how: str, install: Install) -> None:
    install(**HANGS[how])
    with Jtop(Where(first_within_s=0.2)) as source:
        with pytest.raises(SourceError) as refused:
            source.read()
        child = source._lines._process.pid
    assert str(refused.value) == "no answer within 0.2 s"
    assert gone(child)


@pytest.mark.parametrize("how", FAILS)
def test_one_that_fails(how: str, install: Install) -> None:
    parts, told = FAILS[how]
    install(**parts)
    with Jtop(Where()) as source, pytest.raises(SourceError) as refused:
        source.read()
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("lie", LIES)
def test_one_that_lies(lie: str, install: Install) -> None:
    power, told = LIES[lie]
    install(repr(power).replace("nan", "float('nan')"))
    with Jtop(Where()) as source, pytest.raises(SourceError) as refused:
        source.read()
    assert told in str(refused.value)


def test_one_that_dies_later(install: Install) -> None:
    install(ok="self.told += 1; return self.told == 1 or os._exit(1)")
    with Jtop(Where()) as source:
        first = source.read()
        while not source._lines._ended:
            time.sleep(0.01)
        with pytest.raises(SourceError, match="it has ended"):
            source._lines.newest(1, 0)
    assert first.total_mw == 5133


def test_the_child_ends_with_its_reader(install: Install) -> None:
    install(**HANGS["busily"])
    source = Jtop(Where())
    process = source._lines._process
    assert process.stdin is not None
    process.stdin.close()  # what the system does when we are killed
    process.wait()


def test_boards_without_an_input_rail() -> None:
    powers = {"VDD_GPU_SOC": 3362, "VDD_CPU_CV": 480, "VIN_SYS_5V0": 4868}
    rails = {name: {"power": power, "online": True} for name, power in powers.items()}
    told = {"rail": rails, "tot": {"power": 8710, "avg": 8000}}
    assert rails_of(told) == (powers, None)


def test_what_is_no_rail() -> None:
    rails = {
        "VDD_CPU_CV": rail(12000, 100),
        "NC": rail(0, 0),
        "ucsi-source-psy-1-00081": rail(5000, 3000),
        "VDD_OFF": rail(5000, 0, online=False),
    }
    told = {"rail": rails, "tot": {"power": 1200 + 15000}}
    assert rails_of(told) == ({"VDD_CPU_CV": 1200}, None)


def test_an_input_that_only_it_names() -> None:
    told = {**NANO, "tot": {"power": 9999, "name": "MAIN"}}
    rails, board = rails_of(told)
    assert board == "MAIN" and rails["MAIN"] == 9999


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SourceError, match="jetson-stats is not installed"):
        Jtop(Where())


def test_it_is_of_this_machine(tmp_path: Path, install: Install) -> None:
    install()
    with pytest.raises(SourceError, match="it reads this machine, not"):
        Jtop(Where(tmp_path))
