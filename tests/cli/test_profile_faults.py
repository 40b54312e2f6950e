"""`bitmtp-edge profile` when a mode, a sensor, a disk or the machine does not do as it should."""

from __future__ import annotations

import csv
import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge import session
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.cli.profile_tables import print_profile
from bitmtp_edge.decode.costs import CostTable
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import Engine
from bitmtp_edge.power.modes import PowerModes
from bitmtp_edge.profiling import outputs, runner
from bitmtp_edge.profiling.report import read_report

from ..decode.trace_engine import cost_table
from ..power.fake_metering import SHORT, FakeMetering
from ..power.nvpmodel_stub import Board
from ..profiling import samples
from .conftest import PROFILED, QUICK, Verb

MEASURE = runner.measure
BOTH = ("--power-mode", "15W", "--power-mode", "25W")


def measuring(before: Callable[[int], None]) -> Callable[..., Any]:
    """A measurement that calls ``before`` with the number of the point, from 1 on."""
    number = 0

    def measured(*rest: Any) -> Any:
        nonlocal number
        number += 1
        before(number)
        return MEASURE(*rest)

    return measured


def written(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return value


def names(folder: Path) -> list[str]:
    return [point.key.name for point in read_report(folder / "out.json").points]


@pytest.mark.parametrize("asked", [(), ("--power-mode", "15W")])
def test_a_point_whose_mode_somebody_changed_keeps_no_figure(
    asked: tuple[str, ...],
    profile: Verb,
    meter: FakeMetering,
    nx: Board,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def set_by_another(number: int) -> None:
        (nx.bin / "state").write_text("3" if number == 2 else "2")

    monkeypatch.setattr(runner, "measure", measuring(set_by_another))
    done = profile(*asked)
    why = (
        "the power mode behind it was 25W, not 15W: something else sets it; "
        "power --set-mode 15W sets it back"
    )
    assert done.code == 2
    assert f"15W speculative D=4: no figures: {why}\n" in done.err
    assert f"1 of 2 points have no figures ({why}): the same command tries" in done.err
    row = next(line for line in done.out.splitlines() if line.startswith("15W speculative"))
    assert row.split()[3:] == ["-"] * 6
    assert f"15W speculative D=4: no figures: {why}" in done.out
    (failure,) = written(tmp_path)["failed"]
    assert (failure["key"]["policy"], failure["reason"]) == ("speculative", why)
    assert names(tmp_path) == ["15W ar"] and not written(tmp_path)["complete"]
    rows = list(csv.DictReader((tmp_path / "out.csv").open(newline="")))
    assert (rows[1]["tokens_per_s"], rows[1]["reason"]) == ("", why)
    assert f"15W speculative D=4: no figures: {why}." in (tmp_path / "out.html").read_text()
    (nx.bin / "state").write_text("2")
    monkeypatch.setattr(runner, "measure", MEASURE)
    done = profile(*asked)
    assert done.code == 0 and "1 point of" in done.err and " is kept" in done.err
    assert names(tmp_path) == ["15W ar", "15W speculative D=4"] and not written(tmp_path)["failed"]


def test_a_mode_that_was_changed_before_a_point(
    profile: Verb, nx: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_by_another(number: int) -> None:
        (nx.bin / "state").write_text("3")

    monkeypatch.setattr(runner, "measure", measuring(set_by_another))
    done = profile()
    assert done.code == 2 and done.out == ""
    assert "15W ar: no figures: the power mode behind it was 25W" in done.err
    assert "15W speculative D=4: no figures: the power mode before it was 25W" in done.err


def test_a_mode_that_cannot_be_set_does_not_keep_the_others(
    profile: Verb, meter: FakeMetering, nx: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = PowerModes.set

    def fails(self: PowerModes, name: str, *, reboot: bool = False) -> bool:
        if name == "MAXN_SUPER":
            raise self._failed(self.find(name), Done())
        return whole(self, name, reboot=reboot)

    class Done:
        lacks_permission, complaint = True, "Permission denied"

    with monkeypatch.context() as broken:
        broken.setattr(PowerModes, "set", fails)
        done = profile("--power-mode", "all")
    why = "no permission to set power mode MAXN_SUPER (Permission denied)"
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith(
        f"bitmtp-edge: error: 2 of 6 points have no figures ({why}"
    )
    assert [line.split()[0] for line in done.out.splitlines()[3:9]] == [
        *["15W"] * 2,
        *["25W"] * 2,
        *["MAXN_SUPER"] * 2,
    ]
    assert nx.mode == 2
    assert [key["key"]["power_mode"] for key in written(tmp_path)["failed"]] == ["MAXN_SUPER"] * 2
    kept = written(tmp_path)["points"]
    done = profile("--power-mode", "all")
    assert done.code == 0 and "4 points of" in done.err
    told = written(tmp_path)
    assert told["complete"] and [each for each in told["points"] if each in kept] == kept


def test_no_mode_at_all_is_one_line(profile: Verb, nx: Board, tmp_path: Path) -> None:
    nx.misbehave("permission")
    done = profile("--power-mode", "25W")
    assert done.code == 2 and done.out == ""
    assert "no permission to set power mode 25W" in done.err.splitlines()[-1]
    assert not (tmp_path / "out.json").exists()


def test_a_way_back_that_fails_comes_behind_the_table(
    profile: Verb, meter: FakeMetering, nx: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_it(number: int) -> None:
        if number == 2:
            nx.misbehave("fail")

    monkeypatch.setattr(runner, "measure", measuring(break_it))
    done = profile("--power-mode", "25W")
    assert done.code == 2
    assert "\n25W ar " in done.out and "\n25W speculative D=4 " in done.out
    assert "could not be set back to 15W" in done.err.splitlines()[-1]
    assert written(tmp_path)["complete"]


def test_a_full_disk_comes_behind_the_table(
    profile: Verb, meter: FakeMetering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = outputs.write_report

    def full(path: Path, report: Any) -> None:
        if len(report.points) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, report)

    monkeypatch.setattr(outputs, "write_report", full)
    done = profile()
    assert done.code == 2
    assert "\n15W ar " in done.out and "\n15W speculative D=4 " in done.out
    assert done.err.splitlines()[-1].endswith("out.json: No space left on device")
    assert names(tmp_path) == ["15W ar"]


def test_a_sensor_that_dies_is_told_when_it_does(
    profile: Verb, meter: FakeMetering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, begun = meter.begin, iter(range(9))

    def dies() -> Any:
        window = begin()
        if next(begun) < 2:
            return window
        end = window.end
        monkeypatch.setattr(window, "end", lambda tokens: end(0))
        return window

    monkeypatch.setattr(meter, "begin", dies)
    done = profile()
    assert done.code == 0
    assert done.err.count("no joules") == 1
    assert f"15W ar, round 3: no joules: {SHORT}\n" in done.err
    first, second = written(tmp_path)["points"]
    assert first["reason"] == f"joules are of 2 of 3 rounds: {SHORT}"
    assert len(first["joules_per_token"]["values"]) == 2
    assert (second["reason"], second["joules_per_token"]) == (SHORT, None)
    assert "3 (J: 2)" in done.out
    assert f"15W ar: joules are of 2 of 3 rounds: {SHORT}" in done.out
    rows = list(csv.DictReader((tmp_path / "out.csv").open(newline="")))
    assert [row["joules_rounds"] for row in rows] == ["2", "0"]


def test_no_sensor_is_told_before_hours_of_work(profile: Verb, tmp_path: Path) -> None:
    assert "no joules are measured: no power source works here" in profile().err
    assert (
        "no joules are measured"
        not in profile("--energy", "off", "--json", tmp_path / "other.json").err
    )


def test_a_busy_machine_is_told(
    profile: Verb, meter: FakeMetering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spreads = iter([1.0, 6.1, 1.2, 1.4])
    monkeypatch.setattr(runner, "step_spread", lambda engine, states: next(spreads))
    done = profile()
    why = "15W ar: runs of one step differ 6.1 times, so something else is busy here"
    assert done.err.count(why) == 1 and f"\n{why}\n" in done.out
    assert "speculative D=4: runs of one step" not in done.out
    assert [point["step_spread"] for point in written(tmp_path)["points"]] == [6.1, 1.4]


def test_what_steps_cost_is_measured_in_the_modes_asked_for(
    profile: Verb, meter: FakeMetering, nx: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in 15W, the present one. A min-prefix that is auto is what that mode's costs say."""
    seen: list[int] = []

    def costs(bundle: Bundle, engine: Engine, states: ReplayStates, *rest: object) -> CostTable:
        seen.append(nx.mode)
        return cost_table(states, lambda width: 1.0 if nx.mode == 3 else width**3)

    monkeypatch.setattr(session, "costs_of", costs)
    hybrid = ("--policy", "hybrid", "--block", "auto", "--block", 4, "--min-prefix", "auto")
    done = profile(*hybrid, "--power-mode", "25W", "--power-mode", "MAXN_SUPER")
    assert done.code == 0 and seen == [3, 0]
    keys = [point["key"]["settings"] for point in written(tmp_path)["points"]]
    auto = {"block": 4, "tau": 0.9, "min_prefix": "auto", "objective": "speed"}
    assert [key for key in keys if key.get("min_prefix")][1] == {**auto, "tau": keys[3]["tau"]}
    found = [point["min_prefix"] for point in written(tmp_path)["points"]]
    assert sum(least is not None for least in found) == 2
    label = f"25W hybrid D=4 tau={keys[3]['tau']} m=auto"
    assert f"{label}: min-prefix {found[4]}\n" in done.out


def test_who_the_figures_are_of(capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = samples.point(watts=7.0), samples.point("25W", rates=(300, 301, 302), watts=60.0)
    print_profile(samples.report(slow, fast), None)
    out = capsys.readouterr().out
    assert "\nfastest: 25W ar; most frugal: 15W ar\n" in out
    assert "\npower: ina3221, VDD_IN, idle power included (the model loaded and at rest: " in out
    assert "15W 4 W, 25W 4 W)\n" in out


@pytest.mark.parametrize("kind", ["json", "csv", "html"])
@pytest.mark.parametrize("name", ["-", ""])
def test_what_is_no_file_name(
    kind: str, name: str, verb: Verb, block_bundle: Path, prompts: Path
) -> None:
    refused = verb("profile", block_bundle, "--prompts", prompts, f"--{kind}", name).refused()
    assert f"--{kind} takes the name of a file" in refused


def test_a_prompt_that_is_too_long_is_named(verb: Verb, block_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text(f"the hat\n\n{'word ' * 4000}\n")
    done = verb("profile", block_bundle, "--prompts", path, *PROFILED, *QUICK)
    assert done.code == 2 and done.out == ""
    told = done.err.splitlines()[-1]
    assert "long.txt, line 3: the prompt has " in told and told.endswith("shorten the prompt")
