"""`bitmtp-edge profile`: figures and files, going on where it ended, and the mode from before."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.cli.profile_tables import print_profile
from bitmtp_edge.profiling import runner
from bitmtp_edge.profiling.csv_table import COLUMNS
from bitmtp_edge.profiling.report import read_report

from ..power.fake_metering import IDLE, SHORT, FakeMetering
from ..power.nvpmodel_stub import Board
from ..profiling import samples
from .conftest import PROFILED as POLICIES
from .conftest import QUICK, Verb

MEASURE = runner.measure


def written(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return value


def names(folder: Path) -> list[str]:
    return [point.key.name for point in read_report(folder / "out.json").points]


def test_table_and_files(profile: Verb, meter: FakeMetering, tmp_path: Path) -> None:
    done = profile("--power-mode", "25W", "--power-mode", "15W")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[2].split() == ["tok/s", "J/token", "W", "deg", "C", "tokens/iter.", "rounds"]
    assert [line.split()[:2] for line in lines[3:7]] == [
        ["25W", "ar"],
        ["25W", "speculative"],
        ["15W", "ar"],
        ["15W", "speculative"],
    ]
    told = written(tmp_path)
    assert told["complete"] and told["request"]["energy"] == "fake"
    for point in told["points"]:
        assert point["joules_per_token"]["mean"] == pytest.approx(0.2)
        assert len(point["tokens_per_s"]["values"]) == 3
        assert (point["watts"]["mean"], point["idle_watts"]) == (pytest.approx(2), IDLE)
        assert point["conditions"]["celsius"] == 51.25
        assert [each["phase"] for each in point["trace"]["stretches"]] == ["prefill", "decode"] * 2
    assert told["points"][0]["tokens_per_iteration"] == pytest.approx(1, abs=0.05)
    rows = list(csv.DictReader((tmp_path / "out.csv").open(newline="")))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["power_mode"], row["policy"]) for row in rows] == [
        ("25W", "ar"),
        ("25W", "speculative"),
        ("15W", "ar"),
        ("15W", "speculative"),
    ]
    assert float(rows[0]["joules_per_token"]) == pytest.approx(0.2)
    assert (rows[0]["celsius"], rows[0]["block"], rows[1]["block"]) == ("51.25", "", "4")
    assert "J/token" in (tmp_path / "out.html").read_text()


def test_modes_by_turns_and_the_one_from_before(
    profile: Verb, meter: FakeMetering, nx: Board
) -> None:
    assert profile("--power-mode", "25W", "--power-mode", "maxn_super").code == 0
    assert (nx.calls, nx.mode) == (["-m 3", "-m 0", "-m 2"], 2)
    assert meter.calls.count("idle") == 2


def test_the_present_mode_is_measured_without_being_set(
    profile: Verb, nx: Board, tmp_path: Path
) -> None:
    done = profile()
    assert (done.code, nx.calls) == (0, [])
    assert names(tmp_path) == ["15W ar", "15W speculative D=4"]
    point = written(tmp_path)["points"][0]
    assert (point["joules_per_token"], point["watts"], point["trace"]) == (None, None, None)
    assert "no power source works here" in point["reason"]
    assert "no joules: no power source works here" in done.out
    assert "No joules: no power source works here" in (tmp_path / "out.html").read_text()


def test_a_sensor_that_gives_no_figure(
    profile: Verb, meter: FakeMetering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = profile("--max-new-tokens", 1)
    assert done.code == 0
    assert written(tmp_path)["points"][0]["reason"] == SHORT


class Killed(BaseException):
    """What no code of ours catches, as kill -9 is not caught."""


def after(points: int, fault: type[BaseException]) -> Callable[..., Any]:
    """A measurement that ends by ``fault`` once so many points are done."""
    done = iter(range(points))

    def measured(*rest: Any) -> Any:
        if next(done, None) is None:
            raise fault
        return MEASURE(*rest)

    return measured


@pytest.mark.parametrize("fault", [Killed, KeyboardInterrupt])
def test_the_same_command_goes_on(
    profile: Verb,
    meter: FakeMetering,
    nx: Board,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: type[BaseException],
) -> None:
    modes = ("--power-mode", "25W", "--power-mode", "15W")
    monkeypatch.setattr(runner, "measure", after(3, fault))
    if fault is Killed:
        with pytest.raises(Killed):
            profile(*modes)
    else:
        done = profile(*modes)
        assert done.code == 130
        assert "3 of 4 points are measured; the same command goes on from" in done.err
        assert "\n15W speculative D=4 " in done.out and "\n25W speculative" not in done.out
    assert nx.mode == 2
    before = written(tmp_path)
    assert not before["complete"]
    assert names(tmp_path) == ["25W ar", "15W ar", "15W speculative D=4"]
    assert "Unfinished: 3 of 4" in (tmp_path / "out.html").read_text()
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 4
    monkeypatch.setattr(runner, "measure", after(1, Killed))
    done = profile(*modes)
    assert done.code == 0 and "3 points of" in done.err
    told = written(tmp_path)
    assert told["complete"] and len(told["points"]) == 4
    assert [told["points"][i] for i in (0, 2, 3)] == before["points"]
    assert sorted(tmp_path.glob("*.partial")) == []


def test_on_through_a_reboot(profile: Verb, meter: FakeMetering, nx: Board, tmp_path: Path) -> None:
    command = ("--power-mode", "10W", "--power-mode", "25W", "--reboot")
    done = profile(*command)
    assert done.code == 130
    assert "the board reboots into power mode 10W; 2 of 4 points are measured" in done.err
    assert names(tmp_path) == ["25W ar", "25W speculative D=4"]
    (nx.bin / "state").write_text("1")  # the board is up again
    assert profile(*command).code == 0
    assert written(tmp_path)["complete"]
    assert names(tmp_path)[:2] == ["10W ar", "10W speculative D=4"]
    assert nx.calls == ["-m 3", "-m 1", "-m 2"]


def test_what_was_asked_for_otherwise_is_measured_anew(
    profile: Verb, meter: FakeMetering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "measure", after(1, KeyboardInterrupt))
    assert profile().code == 130
    monkeypatch.setattr(runner, "measure", MEASURE)
    (tmp_path / "out.json").write_text(
        (tmp_path / "out.json").read_text().replace('"max_rounds": 3', '"max_rounds": 5')
    )
    done = profile("--energy", "off", "--root", "/")
    assert "is of another profile (max_rounds): all points are measured anew" in done.err
    (tmp_path / "out.json").write_text('{"complete": false}')
    assert "field 'command' is missing" in profile("--energy", "off", "--root", "/").err


def test_a_finished_profile_is_measured_again_point_by_point(
    profile: Verb, meter: FakeMetering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert profile().code == 0
    first = written(tmp_path)
    page = (tmp_path / "out.html").read_text()
    monkeypatch.setattr(runner, "measure", after(0, KeyboardInterrupt))
    done = profile()
    assert done.code == 130 and "0 of 2 points are measured\n" in done.err
    anew = "measured anew, and kept until then: 15W ar, 15W speculative D=4"
    assert anew in done.err and done.err.count(anew) == 1
    assert (written(tmp_path), (tmp_path / "out.html").read_text()) == (first, page)
    meter.watts = 3.0
    monkeypatch.setattr(runner, "measure", after(1, KeyboardInterrupt))
    done = profile()
    assert done.code == 130 and "1 of 2 points are measured; the same command goes on" in done.err
    assert "of the run before: 15W speculative D=4" in done.out
    told = written(tmp_path)
    assert not told["complete"] and [p["watts"]["mean"] for p in told["points"]] == [3, 2]
    assert [key["policy"] for key in told["from_before"]] == ["speculative"]
    page = (tmp_path / "out.html").read_text()
    assert "Unfinished: 1 of 2" in page and "Of the run before: 15W speculative D=4." in page
    monkeypatch.setattr(runner, "measure", after(1, Killed))
    assert profile().code == 0
    told = written(tmp_path)
    assert told["complete"] and not told["from_before"]
    assert [point["watts"]["mean"] for point in told["points"]] == [3, 3]


def test_other_policies_keep_what_both_ask_for(
    profile: Verb, meter: FakeMetering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert profile().code == 0
    first = written(tmp_path)["points"]
    monkeypatch.setattr(runner, "measure", after(0, KeyboardInterrupt))
    assert profile("--policy", "confidence").code == 130
    assert written(tmp_path)["points"] == first
    monkeypatch.setattr(runner, "measure", after(1, Killed))
    done = profile("--policy", "confidence")
    assert done.code == 0 and "2 points of" in done.err
    assert written(tmp_path)["points"][:2] == first and len(names(tmp_path)) == 3


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (f'"idle_watts": {IDLE}', '"idle_watts": NaN', "nan is no figure"),
        ('"seconds": [', '"seconds": [1e308, ', "is no figure"),
        ('"watts": [', '"watts": [1.0, ', "is not power over time"),
        ('"policy": "ar"', '"policy": "nested"', "was not asked for"),
        ('"policy": "speculative"', '"policy": "ar"', "was not asked for"),
        ('"generated_tokens": ', '"generated_tokens": -', "has no tokens"),
    ],
)
def test_a_damaged_profile_is_measured_anew(
    old: str, new: str, told: str, profile: Verb, meter: FakeMetering, tmp_path: Path
) -> None:
    assert profile().code == 0
    out = tmp_path / "out.json"
    before, points, behind = out.read_text().partition('"points": [\n  {\n   "key"')
    assert old in behind
    out.write_text(before + points + behind.replace(old, new))
    done = profile()
    assert done.code == 0 and "is damaged (" in done.err and told in done.err
    assert "all points are measured anew" in done.err
    assert written(tmp_path)["complete"]
    out.write_text(before + points + behind.replace(old, new))
    assert told in profile("--compare", out, "--json", tmp_path / "new.json").err


def test_compared_with_an_older_one(profile: Verb, meter: FakeMetering, tmp_path: Path) -> None:
    assert profile().code == 0
    old = tmp_path / "old.json"
    old.write_text((tmp_path / "out.json").read_text())
    meter.watts = 3.0
    done = profile("--compare", old)
    assert done.code == 0
    row = next(line for line in done.out.splitlines() if "+50.0%" in line).split()
    assert row[:2] == ["15W", "ar"]
    assert row[-2:] == ["+50.0%*", "+50.0%*"]
    assert "Since the older profile" in (tmp_path / "out.html").read_text()
    refused = profile("--compare", old, "--max-new-tokens", 8)
    assert refused.code == 2 and "give --max-new-tokens 12" in refused.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--power-mode", "99W"), "there is no power mode '99W' here"),
        (("--power-mode", "10W"), "takes a reboot"),
        (("--html", "/nowhere/x.html"), "/nowhere/x.html cannot be written"),
        (("--compare", "/nowhere.json"), "/nowhere.json"),
        (("--block", "1"), "--block"),
        (("--max-rounds", "2"), "--max-rounds"),
        (("--within", "nan"), "--within"),
        (("--min-seconds", "nan"), "--min-seconds"),
        (("--min-seconds", "inf"), "--min-seconds"),
        (("--energy", "magic"), "there is no power source 'magic'"),
    ],
)
def test_refusals(profile: Verb, options: tuple[str, ...], told: str) -> None:
    done = profile(*options)
    assert done.code == 2
    assert told in done.err.splitlines()[-1]


def test_what_must_not_be_written_over(
    profile: Verb, verb: Verb, block_bundle: Path, prompts: Path, tmp_path: Path
) -> None:
    """Refused before anything is measured, whatever the file is called."""
    linked, notes, both = tmp_path / "linked", tmp_path / "notes.txt", tmp_path / "both.json"
    linked.symlink_to(prompts)
    notes.write_text("mine")
    before = prompts.read_bytes()
    for options, told in (
        (("--json", block_bundle / "bundle.json"), "would write over the bundle"),
        (("--csv", block_bundle / "new.csv"), "would write over the bundle"),
        (("--html", linked), "would write over the prompts"),
        (("--json", both, "--csv", both), "would write over --json"),
        (("--csv", notes), "notes.txt is there and no profile wrote it"),
        (("--html", notes), "notes.txt is there and no profile wrote it"),
        (("--json", notes), "notes.txt is there and no profile wrote it"),
        (("--json", both, "--compare", both), "would write over the older profile"),
    ):
        refused = verb("profile", block_bundle, "--prompts", prompts, *QUICK, *options).refused()
        assert told in refused
    assert (notes.read_text(), prompts.read_bytes()) == ("mine", before)
    assert not both.exists()
    assert profile().code == 0
    assert profile().code == 0  # over files of its own


def test_names_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    one = replace(samples.point("\x1b[2J"), reason="\x1b]0;x", tight=False)
    print_profile(replace(samples.report(one, prompt_count=1), model="a\x1b[31m"), None)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "a\\x1b[31m, engine cpu: 1 prompt, up to" in out and "\\x1b[2J ar" in out


def test_a_reboot_needs_a_file(verb: Verb, block_bundle: Path, prompts: Path) -> None:
    told = verb("profile", block_bundle, "--prompts", prompts, "--reboot").refused()
    assert "add --json FILE" in told


def test_signals_leave_a_valid_profile_and_the_mode(
    block_bundle: Path, prompts: Path, nx: Board, tmp_path: Path
) -> None:
    """A process of its own: SIGTERM once the first point is kept."""
    out = tmp_path / "out.json"
    arguments = (block_bundle, "--prompts", prompts, "--root", nx.root, "--power-mode", "25W")
    rest = (*POLICIES, "--max-rounds", 3, "--min-seconds", 0.2, "--energy", "off", "--json", out)
    command = [sys.executable, "-m", "bitmtp_edge", "profile", *map(str, (*arguments, *rest))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while not out.exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert b"1 of 2 points are measured" in errors
    assert names(tmp_path) == ["25W ar"]
    assert nx.mode == 2
