"""Power modes of a profile: their order, and the one from before at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.power.mode_note import left_behind
from bitmtp_edge.power.modes import PowerModes, Rebooting
from bitmtp_edge.profiling.modes import ModeTour, in_order

from ..power.nvpmodel_stub import Board, board


@pytest.fixture
def nx(tmp_path: Path) -> Board:
    """In mode 15W; 10W takes a reboot."""
    return board(tmp_path)


def refused(name: str, error: UserError) -> None:
    raise AssertionError(f"{name}: {error}")


def tour(here: Board, reboot: bool = False) -> ModeTour:
    return ModeTour(PowerModes(here.root, here.command), reboot)


def test_reboots_come_last() -> None:
    def takes_reboot(name: str) -> bool:
        return name in "bd"

    assert in_order(["b", "a", "d", "c"], "c", takes_reboot) == ["c", "a", "b", "d"]
    assert in_order(["b", "a"], "b", takes_reboot) == ["b", "a"]


def test_names(nx: Board) -> None:
    assert tour(nx).names(()) == ("15W",)
    assert tour(nx).names(("maxn_super", "25W", "MAXN_SUPER")) == ("MAXN_SUPER", "25W")
    assert tour(nx).names(("all",)) == ("MAXN_SUPER", "15W", "25W")
    assert tour(nx, reboot=True).names(("all",)) == ("MAXN_SUPER", "10W", "15W", "25W")
    assert ModeTour(None).names(()) == (None,)
    with pytest.raises(UserError, match="there is no power mode '99W'"):
        tour(nx).names(("99W",))


def test_modes_that_are_left_out_are_named(nx: Board) -> None:
    told: list[str] = []
    modes = PowerModes(nx.root, nx.command)
    ModeTour(modes, False, told.append).names(("all",))
    assert told == ["left out, since they take a reboot, which --reboot allows: 10W"]
    ModeTour(modes, True, told.append).names(("all",))
    ModeTour(modes, False, told.append).names(("25W",))
    assert len(told) == 1


def test_a_present_mode_that_nobody_knows(nx: Board) -> None:
    nx.misbehave("query silent")
    told: list[str] = []
    silent = ModeTour(PowerModes(nx.root, nx.command), False, told.append)
    assert silent.names(()) == (None,)
    (line,) = told
    assert line.startswith("the power mode is unknown, so a change of it would not be seen: ")
    with tour(nx).held([None], refused) as holding:
        assert list(holding) == [None]


def test_each_holds_in_its_turn_and_the_first_is_set_again(nx: Board) -> None:
    seen = []
    with tour(nx).held(["MAXN_SUPER", "15W", "25W"], refused) as holding:
        seen = [(name, nx.mode) for name in holding]
    assert seen == [("15W", 2), ("MAXN_SUPER", 0), ("25W", 3)]
    assert (nx.mode, left_behind(nx.root)) == (2, None)


@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt])
def test_it_is_set_again_after_a_fault(nx: Board, fault: type[BaseException]) -> None:
    with pytest.raises(fault), tour(nx).held(["25W"], refused) as holding:
        assert (next(holding), nx.mode) == ("25W", 3)
        raise fault
    assert nx.mode == 2


def test_the_present_mode_alone_is_not_set(nx: Board) -> None:
    """So that nobody has to be root for it."""
    with tour(nx).held(["15W"], refused) as holding:
        assert list(holding) == ["15W"]
    assert nx.calls == [] and not (nx.root / "var").exists()


def test_through_a_reboot_and_back(nx: Board) -> None:
    seen = []
    with pytest.raises(Rebooting), tour(nx, reboot=True).held(["10W", "25W"], refused) as holding:
        for name in holding:
            seen.append(name)
    assert seen == ["25W"]
    assert left_behind(nx.root) == "15W"
    (nx.bin / "state").write_text("1")  # the board is up again
    with tour(nx, reboot=True).held(["10W"], refused) as holding:
        seen += list(holding)
    assert seen == ["25W", "10W"]
    assert (nx.calls[-1], left_behind(nx.root)) == ("-m 2", None)


def test_a_mode_that_takes_a_reboot_is_refused(nx: Board) -> None:
    told: list[str] = []
    with tour(nx).held(["10W"], lambda name, error: told.append(f"{name}: {error}")) as holding:
        assert list(holding) == []
    assert told[0].startswith("10W: power mode 10W takes a reboot")
    assert nx.mode == 2


@pytest.mark.parametrize("bad", ["MAXN_SUPER", "25W"])
def test_one_that_cannot_be_set_does_not_keep_the_others(
    nx: Board, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them, or a later one."""
    whole = PowerModes.set

    def fails(self: PowerModes, name: str, *, reboot: bool = False) -> bool:
        if name == bad:
            raise UserError(f"nvpmodel could not set {name}")
        return whole(self, name, reboot=reboot)

    monkeypatch.setattr(PowerModes, "set", fails)
    told: list[tuple[str, str]] = []
    names = ["MAXN_SUPER", "25W"]
    with tour(nx).held(names, lambda name, error: told.append((name, str(error)))) as holding:
        assert list(holding) == [name for name in names if name != bad]
    assert told == [(bad, f"nvpmodel could not set {bad}")]
    assert (nx.mode, left_behind(nx.root)) == (2, None)


def test_a_mode_that_somebody_sets(nx: Board) -> None:
    here = tour(nx)
    assert here.other_than("15W") is None
    (nx.bin / "state").write_text("3")
    assert (here.other_than("15W"), here.other_than(None)) == ("25W", None)
    nx.misbehave("query silent")
    assert here.other_than("15W") == "unknown"
    assert ModeTour(None).other_than("15W") is None
