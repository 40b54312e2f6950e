"""Which source is taken, what is said of those that were not, and how long that lasts."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.power import registry
from bitmtp_edge.power.registry import KINDS, ORDER, Kind, open_source
from bitmtp_edge.power.source import Reading, Source, SourceError, Where

from . import trees
from .jtop_stubs import HANGS, LIES, stub


class Fixed(Source):
    """A source that is there."""

    name = "fixed"
    poll_s = update_s = 0.01

    def __init__(self, where: Where) -> None:
        self.closed = threading.Event()

    def read(self) -> Reading:
        return self.board_reading({"VDD_IN": 5000})

    def close(self) -> None:
        self.closed.set()


class Absent(Fixed):
    def __init__(self, where: Where) -> None:
        raise SourceError("not here")


class Dead(Fixed):
    opened: ClassVar[list[Dead]] = []

    def read(self) -> Reading:
        self.opened.append(self)
        raise SourceError("it is dead")


class Late(Fixed):
    """Opens when it is let."""

    let = threading.Event()
    opened: ClassVar[list[Late]] = []

    def __init__(self, where: Where) -> None:
        super().__init__(where)
        self.let.wait()
        self.opened.append(self)


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "absent": Kind(Absent),
        "dead": Kind(Dead),
        "late": Kind(Late, within_s=0.05),
        "fixed": Kind(Fixed),
    }
    monkeypatch.setattr(registry, "KINDS", table)
    Late.let.clear()
    Late.opened.clear()
    Dead.opened.clear()


@pytest.mark.usefixtures("kinds")
def test_the_first_that_works_and_one_notice() -> None:
    told: list[str] = []
    with open_source(notice=told.append, order=("absent", "dead", "late", "fixed")) as source:
        assert source.name == "fixed"
    assert told == [
        "power is read from fixed; absent: not here; dead: it is dead; "
        "late: no answer within 0.05 s"
    ]
    assert Dead.opened[0].closed.is_set()
    Late.let.set()
    while not Late.opened:
        time.sleep(0.01)
    assert Late.opened[0].closed.wait(10)


@pytest.mark.usefixtures("kinds")
def test_no_notice_where_nothing_was_skipped() -> None:
    told: list[str] = []
    open_source(notice=told.append, order=("fixed", "absent"))
    assert told == []


@pytest.mark.usefixtures("kinds")
def test_none_works() -> None:
    with pytest.raises(UserError) as refused:
        open_source(order=("absent", "dead"))
    assert str(refused.value) == "no power source works here: absent: not here; dead: it is dead"


@pytest.mark.usefixtures("kinds")
def test_a_named_one() -> None:
    assert open_source("fixed").name == "fixed"
    with pytest.raises(UserError, match="power source dead does not work here: it is dead"):
        open_source("dead")
    with pytest.raises(UserError, match="there is no power source 'none': take absent, dead"):
        open_source("none")


def test_the_order_is_that_of_the_table() -> None:
    assert ORDER == ("jtop", "ina3221", "tegrastats", "nvml", "rapl")
    assert set(registry.METER_ORDER_GPU) | set(registry.METER_ORDER_CPU) == set(KINDS)


def test_a_jtop_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(stub(tmp_path / "site", **HANGS["busily"])))
    on_this_machine(tmp_path / "tree", monkeypatch, jtop_s=0.5)
    told: list[str] = []
    with open_source(notice=told.append) as source:
        assert source.read().total_mw == 30244
    assert told == ["power is read from ina3221; jtop: no answer within 0.4 s"]


def test_a_jtop_whose_service_sends_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(stub(tmp_path, ok="time.sleep(1); return True")))
    with open_source() as source:
        assert (source.name, source.read().total_mw) == ("jtop", 5133)


@pytest.mark.parametrize("lie", ["an empty dict", "no total", "a sum that is none"])
def test_a_jtop_that_lies(lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(stub(tmp_path / "site", repr(LIES[lie][0]))))
    on_this_machine(tmp_path / "tree", monkeypatch)
    with open_source() as source:
        assert source.read().total_mw == 30244


def on_this_machine(root: Path, monkeypatch: pytest.MonkeyPatch, jtop_s: float = 60) -> None:
    """Has ina3221 find an Orin NX under ``/``."""
    trees.orin_nx(root)
    ina3221 = KINDS["ina3221"].open
    table = {
        **KINDS,
        "jtop": replace(KINDS["jtop"], within_s=jtop_s),
        "ina3221": Kind(lambda where: ina3221(Where(root))),
    }
    monkeypatch.setattr(registry, "KINDS", table)


def test_a_sensor_that_hangs(tmp_path: Path) -> None:
    current = trees.orin_nx(tmp_path) / "curr1_input"
    current.unlink()
    os.mkfifo(current)
    with pytest.raises(UserError, match="ina3221: no answer within 1 s"):
        open_source(where=Where(tmp_path))


def test_another_root_is_not_this_machine(tmp_path: Path) -> None:
    trees.orin_nano(tmp_path)
    told: list[str] = []
    open_source(where=Where(tmp_path), notice=told.append)
    assert told == [f"power is read from ina3221; jtop: it reads this machine, not {tmp_path}"]
