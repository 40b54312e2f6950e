"""A power mode that is held: given back at the end, however that comes, and the note of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.power import modes as module
from bitmtp_edge.power.mode_note import NOTE, left_behind, locked_note, waiting
from bitmtp_edge.power.modes import PowerModes, Rebooting

from . import trees
from .nvpmodel_stub import IMPATIENT, Board, board, modes_of


@pytest.fixture
def nx(tmp_path: Path) -> Board:
    return board(tmp_path)


def test_held_and_given_back(nx: Board) -> None:
    with modes_of(nx).held("25W"):
        assert nx.mode == 3
        assert left_behind(nx.root) is None  # held, not left
    assert nx.mode == 2
    assert nx.calls == ["-m 3", "-m 2"]
    assert left_behind(nx.root) is None


@pytest.mark.parametrize("fault", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_given_back_after_a_fault(fault: type[BaseException], nx: Board) -> None:
    with pytest.raises(fault), modes_of(nx).held("25W"):
        raise fault
    assert nx.mode == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_given_back_after_a_signal(number: signal.Signals, nx: Board) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), modes_of(nx).held("25W"):
        signal.raise_signal(number)
    assert nx.mode == 2
    assert signal.getsignal(number) is before


def test_a_signal_does_not_stop_the_way_back(nx: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    go_back = PowerModes._go_back

    def disturbed(self: PowerModes, name: str, **more: Any) -> bool:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        return go_back(self, name, **more)

    monkeypatch.setattr(PowerModes, "_go_back", disturbed)
    with modes_of(nx).held("25W"):
        pass
    assert nx.mode == 2


def test_a_mode_that_takes_a_reboot_leaves_the_note_for_the_run_after_it(nx: Board) -> None:
    modes = modes_of(nx)
    with (
        pytest.raises(Rebooting, match="the board reboots into power mode 10W"),
        modes.held("25W", reboot=True),
    ):
        modes.change("10W", reboot=True)
    assert (nx.calls, left_behind(nx.root)) == (["-m 3", "-m 1"], "15W")
    trees.write(nx.bin / "state", 1)  # the board is up again
    with modes_of(nx).held("10W", reboot=True):
        assert (nx.mode, nx.calls) == (1, ["-m 3", "-m 1"])
    assert (nx.calls[2:], left_behind(nx.root)) == (["-m 2"], None)


def test_inside_a_held_mode_others_can_be_set(nx: Board) -> None:
    modes = modes_of(nx)
    with modes.held("25W"):
        modes.change("MAXN_SUPER")
        assert nx.mode == 0
        with pytest.raises(UserError, match="takes a reboot"):
            modes.change("10W")
    assert (nx.mode, left_behind(nx.root)) == (2, None)


def test_another_mode_at_the_end_is_told(nx: Board) -> None:
    told: list[str] = []
    modes = PowerModes(nx.root, nx.command, IMPATIENT, notice=told.append)
    with modes.held("25W") as held:
        assert modes.other_than("25W") is None
        modes.change("maxn_super")
        assert held.name == "MAXN_SUPER"
        nx.set(3)  # somebody else does
        assert modes.other_than("MAXN_SUPER") == "25W"
    assert held.other == "25W" and nx.mode == 2
    assert told == [
        "power mode MAXN_SUPER was held, and at the end the mode is 25W: something else sets it"
    ]
    with modes.held("25W") as held:
        pass
    assert held.other is None and len(told) == 1


def test_work_in_the_present_mode_keeps_others_from_setting_one(nx: Board) -> None:
    with modes_of(nx).kept():  # no note yet, and none is made
        assert not (nx.root / NOTE).exists()
        with modes_of(nx).held("25W"), modes_of(nx).kept():  # as inside --set-mode NAME COMMAND
            pass
    with modes_of(nx).kept(), modes_of(nx).kept():
        for change in (lambda: modes_of(nx).keep("25W"), lambda: modes_of(nx).restore()):
            with pytest.raises(UserError, match="another process holds the power mode, or meas"):
                change()
    modes_of(nx).keep("25W")
    assert nx.mode == 3


def test_the_announced_way_back_through_a_reboot(nx: Board) -> None:
    """As a profile's last run, which began in the mode that took a reboot."""
    told: list[str] = []
    trees.write(nx.root / NOTE, '{"go_back_to": "10W", "waiting": true}')
    assert waiting(nx.root)
    modes = PowerModes(nx.root, nx.command, IMPATIENT, notice=told.append)
    with modes.held("15W", reboot=True):
        assert nx.calls == told == [] and not waiting(nx.root)
    assert (nx.calls, left_behind(nx.root)) == (["-m 1"], None)
    assert told == ["the board reboots now, back into power mode 10W"]


def test_restoring_through_a_reboot(nx: Board) -> None:
    trees.write(nx.root / NOTE, '{"go_back_to": "10W"}')
    with pytest.raises(UserError) as refused:
        modes_of(nx).restore()
    assert str(refused.value) == (
        "the power mode could not be set back to 10W: power mode 10W takes a reboot: "
        "add --reboot to allow it, or do it yourself: sudo nvpmodel -m 1"
    )
    assert (nx.calls, left_behind(nx.root)) == ([], "10W")
    assert modes_of(nx).restore(reboot=True) == ("10W", True)
    assert (nx.calls, left_behind(nx.root)) == (["-m 1"], None)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (UserError("the command failed"), "the command failed; then the power mode could not be "),
        (ZeroDivisionError(), "ZeroDivisionError; then the power mode could not be set back to 15"),
        (KeyboardInterrupt(), "the power mode could not be set back to 15W: nvpmodel could not "),
    ],
)
def test_a_fault_and_no_way_back(
    nx: Board, fault: BaseException, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UserError) as refused, modes_of(nx).held("25W"):
        nx.misbehave("fail")
        raise fault
    assert str(refused.value).startswith(told)
    assert left_behind(nx.root) == "15W"


def test_neither_there_nor_back(nx: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvpmodel sets the mode half, fails, and fails again on the way back."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    nx.misbehave("half fail")
    with pytest.raises(UserError) as refused, modes_of(nx).held("25W"):
        pytest.fail("the mode does not hold")
    assert str(refused.value).startswith("nvpmodel could not set 25W: NVPM ERROR: Error writing")
    then = "; then the power mode could not be set back to 15W: nvpmodel could not set 15W: NVPM"
    assert then in str(refused.value)


def test_who_may_not_set_modes_is_told_what_helps(nx: Board) -> None:
    told: list[str] = []

    def refused(name: str) -> str:
        with pytest.raises(UserError) as error, modes_of(nx).held(name):
            pytest.fail("the note cannot be written")
        return str(error.value)

    trees.write(nx.root / "var", "a file")
    assert refused("25W").endswith(
        ": run this command with sudo, or set it yourself: sudo nvpmodel -m 3"
    )
    assert refused("15W").endswith("): run this command with sudo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "left_behind", lambda root: "25W")
        told.append(refused("15W"))
    assert told[0].endswith("bitmtp-edge power --restore-mode")
    assert "an earlier run left its power mode, 25W was before: sudo " in told[0]


def test_on_another_thread(nx: Board) -> None:
    seen: list[int] = []

    def work() -> None:
        with modes_of(nx).held("25W"):
            seen.append(nx.mode)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (seen, nx.mode) == ([3], 2)


def test_given_back_where_setting_fails_half_way(nx: Board) -> None:
    def fail(self: PowerModes, *arguments: object) -> None:
        nx.bin.joinpath("state").write_text("3")
        raise UserError("half-way")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.PowerModes, "_wait_for", fail)
        with pytest.raises(UserError), modes_of(nx).held("25W"):
            pytest.fail("the mode does not hold")
    assert left_behind(nx.root) == "15W"  # the way back failed in the same way
    assert modes_of(nx).restore() == ("15W", False)
    assert nx.mode == 2


def test_a_way_back_that_fails_is_told_and_noted(nx: Board) -> None:
    with pytest.raises(UserError) as refused, modes_of(nx).held("25W"):
        nx.misbehave("hang")
    assert str(refused.value) == (
        "the power mode could not be set back to 15W: nvpmodel -m 2 did not end within 1 s: "
        "it was stopped; to do it: sudo nvpmodel -m 2"
    )
    assert left_behind(nx.root) == "15W"


KILLED = """
import os, sys
from pathlib import Path
from bitmtp_edge.power.modes import PowerModes
with PowerModes(Path(sys.argv[1]), sys.argv[2]).held("25W"):
    os.kill(os.getpid(), 9)
"""


def killed_in_25w(here: Board) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(here.root), here.command])
    assert done.returncode == -signal.SIGKILL
    assert here.mode == 3


def test_a_run_that_is_killed_leaves_a_note(nx: Board) -> None:
    killed_in_25w(nx)
    assert left_behind(nx.root) == "15W"
    assert modes_of(nx).restore() == ("15W", False)
    assert nx.mode == 2
    assert left_behind(nx.root) is None
    assert modes_of(nx).restore() == (None, False)


def test_the_next_run_goes_back_for_the_one_that_was_killed(nx: Board) -> None:
    killed_in_25w(nx)
    with modes_of(nx).held("MAXN_SUPER"):
        assert nx.mode == 0
    assert nx.mode == 2
    assert left_behind(nx.root) is None


def test_a_mode_that_is_set_for_good_voids_the_note(nx: Board) -> None:
    killed_in_25w(nx)
    modes_of(nx).keep("MAXN_SUPER")
    assert nx.mode == 0
    assert left_behind(nx.root) is None


def test_one_holder_at_a_time(nx: Board) -> None:
    with (
        modes_of(nx).held("25W"),
        pytest.raises(UserError, match="another process holds the power mode"),
        modes_of(nx).held("MAXN_SUPER"),
    ):
        pass
    assert nx.calls == ["-m 3", "-m 2"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"go_back_to": 3}', "\ufffd"])
def test_half_a_note_is_none(text: str, nx: Board) -> None:
    trees.write(nx.root / NOTE, text)
    assert left_behind(nx.root) is None
    with modes_of(nx).held("25W"):
        pass
    assert nx.mode == 2


def test_a_note_that_cannot_be_written(tmp_path: Path) -> None:
    trees.write(tmp_path / "var", "a file")
    with (
        pytest.raises(UserError, match=r"^no permission to set power modes \(.*\): do it$"),
        locked_note(tmp_path, lambda: "do it"),
    ):
        pass


def test_nvpmodel_ends_what_it_has_begun(nx: Board) -> None:
    """A signal while nvpmodel runs is heard when it is done."""
    nx.misbehave("interrupt")
    with pytest.raises(KeyboardInterrupt), modes_of(nx).held("25W"):
        pytest.fail("the signal came before")
    assert nx.calls == ["-m 3", "-m 2"]
    assert nx.mode == 2
