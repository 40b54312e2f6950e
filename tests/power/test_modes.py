"""Power modes: listed, set and read back, whatever nvpmodel does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.power import modes as module
from bitmtp_edge.power import nvpmodel
from bitmtp_edge.power.mode_note import NOTE
from bitmtp_edge.power.modes import Patience, PowerModes

from . import trees
from .nvpmodel_stub import Board, board, modes_of


@pytest.fixture
def nx(tmp_path: Path) -> Board:
    return board(tmp_path)


def test_set_by_name(nx: Board) -> None:
    assert modes_of(nx).set("25W") is True
    assert (nx.mode, nx.calls) == (3, ["-m 3"])
    now = modes_of(nx).current()
    assert now is not None and (now.name, now.id) == ("25W", 3)


def test_capitals_do_not_matter(nx: Board) -> None:
    modes_of(nx).set("maxn_super")
    assert nx.mode == 0


def test_the_mode_that_holds_is_not_set_again(nx: Board) -> None:
    modes_of(nx).set("15W")
    assert nx.calls == []


def test_an_unknown_name(nx: Board) -> None:
    with pytest.raises(UserError) as refused:
        modes_of(nx).set("40W")
    assert str(refused.value) == (
        "there is no power mode '40W' here: take one of MAXN_SUPER, 10W, 15W, 25W"
    )


def test_it_waits_until_the_mode_holds(nx: Board) -> None:
    """nvpmodel returns at once here, and the mode follows."""
    trees.script(
        nx.bin / "nvpmodel",
        f"""
import os, pathlib, sys, time
state = pathlib.Path({str(nx.bin / "state")!r})
if sys.argv[1] == "-q":
    print("NV Power Mode: " + {{2: "15W", 3: "25W"}}[int(state.read_text())])
elif os.fork() == 0:
    for stream in (0, 1, 2):
        os.close(stream)
    time.sleep(0.3)
    state.write_text("3")
    os._exit(0)
""",
    )
    modes_of(nx, Patience(hold_s=30, poll_s=0.02)).set("25W")
    assert nx.mode == 3


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("fail", "nvpmodel could not set 25W: NVPM ERROR: Error writing 2 to /sys/devices/gpu.0"),
        ("fail quietly", "nvpmodel could not set 25W: NVPM ERROR: Error writing 2 to"),
        ("lie", "nvpmodel set 25W without an error, and 0.2 s later the mode is 15W"),
        ("die", "nvpmodel could not set 25W: it said nothing"),
        ("hang", "nvpmodel -m 3 did not end within 1 s: it was stopped"),
        ("flood", "nvpmodel -m 3 printed more than 64 KiB: it was stopped"),
        ("reboot", "power mode 25W takes a reboot: add --reboot to allow it"),
        ("permission", "no permission to set power mode 25W (NVPM ERROR: failed to open file"),
    ],
)
def test_an_nvpmodel_that_misbehaves(
    how: str, told: str, nx: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    nx.misbehave(how)
    with pytest.raises(UserError) as refused:
        modes_of(nx).set("25W")
    assert str(refused.value).startswith(told)
    assert nx.mode == 2


def test_no_permission_tells_the_command(nx: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    nx.misbehave("fail")
    with pytest.raises(UserError, match=r"^no permission .*: sudo nvpmodel -m 3$"):
        modes_of(nx).set("25W")


def test_a_query_that_hangs(nx: Board) -> None:
    nx.misbehave("hang query")
    with pytest.raises(UserError, match=r"nvpmodel -q did not end within 0\.2 s"):
        modes_of(nx, Patience(query_s=0.2)).current()


def test_a_mode_that_gates_other_units_is_refused_before_nvpmodel_runs(nx: Board) -> None:
    with pytest.raises(UserError, match="power mode 10W takes a reboot"):
        modes_of(nx).set("10W")
    assert nx.calls == []


def test_a_reboot_that_is_asked_for(nx: Board) -> None:
    assert modes_of(nx).set("10W", reboot=True) is False
    assert nx.calls == ["-m 1"]


def test_no_mode_told(nx: Board) -> None:
    nx.misbehave("silent")
    modes = modes_of(nx)
    assert modes.current() is None
    with pytest.raises(UserError, match="so it could not be restored"), modes.held("25W"):
        pass
    assert nx.calls == []
    trees.write(nx.root / "var/lib/nvpmodel/status", "pmode:0003 fmode:quiet")
    now = modes.current()
    assert now is not None and now.name == "25W"


@pytest.mark.parametrize(
    ("how", "told"), [("query silent", "unknown"), ("query hang", "unknown (nvpmodel -q did not")]
)
def test_a_mode_that_nobody_tells_any_more(nx: Board, how: str, told: str) -> None:
    modes = modes_of(nx, Patience(query_s=0.2))
    nx.misbehave(how)
    other = modes.other_than("15W")
    assert other is not None and other.startswith(told)


def test_no_modes_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_command", lambda root: None)
    with pytest.raises(UserError, match="no power modes here"):
        PowerModes(tmp_path)


def test_a_configuration_without_the_command(nx: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_command", lambda root: None)
    modes = PowerModes(nx.root)
    assert len(modes.table.modes) == 4
    assert modes.current() is None
    with pytest.raises(UserError, match="cannot be set from here"):
        modes.set("25W")


def test_a_tree_of_another_machine(nx: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modes are read from its files alone; none is set, here or there."""
    monkeypatch.setenv("PATH", str(nx.bin))
    monkeypatch.setattr(nvpmodel, "_SYSTEM", (str(nx.bin),))  # as where JetPack puts its own
    trees.write(nx.root / "var/lib/nvpmodel/status", "pmode:0003 fmode:quiet")
    modes = PowerModes(nx.root)
    now = modes.current()
    assert now is not None and now.name == "25W" and nx.mode == 2
    told = f"the power modes of {nx.root} cannot be set from here: nvpmodel sets those of this mach"
    refusals = (lambda: modes.keep("15W"), lambda: modes.restore(), modes.held("15W").__enter__)
    for refused in refusals:
        with pytest.raises(UserError) as error:
            refused()
        assert str(error.value).startswith(told)
    assert nx.calls == [] and not (nx.root / NOTE).exists()
    assert nvpmodel.find_command() == nx.command


def test_the_command_without_a_configuration(nx: Board) -> None:
    (nx.root / "etc/nvpmodel.conf").unlink()
    modes = modes_of(nx)
    now = modes.current()
    assert now is not None and now.name == "15W"
    with pytest.raises(UserError, match=r"etc/nvpmodel\.conf lists none"):
        modes.set("25W")
