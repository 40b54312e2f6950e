"""What `bitmtp-edge profile` does with a JSON file that is there."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.profiling import runner
from bitmtp_edge.profiling.lock import locked
from bitmtp_edge.profiling.report import read_report

from ..power.fake_metering import FakeMetering
from .conftest import Verb

MEASURE = runner.measure


def interrupt(*rest: Any) -> Any:
    raise KeyboardInterrupt


def change(path: Path, how: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_text())
    how(value)
    path.write_text(json.dumps(value, indent=1))


def totals(value: dict[str, Any], total: str) -> None:
    for point in value["points"]:
        point["total_is"] = total


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (lambda value: value["environment"].update(processor="a Jetson"), "processor: a Jetson"),
        (lambda value: value["request"].update(device="a GPU"), "device: a GPU there, none here"),
        (lambda value: value["request"].update(energy="jtop"), "power source: jtop there, fake"),
        (lambda value: totals(value, "sum of A, B"), "of sum of A, B there, of VDD_IN here"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_points_of_another_machine_or_total_are_not_gone_on_with(
    how: Callable[[dict[str, Any]], None],
    told: str,
    finished: bool,
    profile: Verb,
    meter: FakeMetering,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert profile().code == 0
    out = tmp_path / "out.json"

    def half(value: dict[str, Any]) -> None:
        how(value)
        if not finished:
            value["complete"] = False
            del value["points"][1]

    change(out, half)
    before = out.read_text()
    done = profile()
    assert done.code == 2 and done.out == ""
    last = done.err.splitlines()[-1]
    assert "is of another machine or sensor (" in last and told in last
    assert "give another --json, or remove the file" in last
    assert out.read_text() == before


def test_what_is_missing_beside_a_finished_one_is_written_from_it(
    profile: Verb, meter: FakeMetering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = profile()
    page, json_file = (tmp_path / "out.html").read_text(), (tmp_path / "out.json").read_text()
    (tmp_path / "out.html").unlink()
    monkeypatch.setattr(runner, "measure", interrupt)
    done = profile()
    assert done.code == 0 and done.out == first.out
    notice = f"out.json is finished: {tmp_path / 'out.html'} written from it, and nothing is"
    assert notice in done.err
    assert (tmp_path / "out.html").read_text() == page
    assert (tmp_path / "out.json").read_text() == json_file
    (tmp_path / "out.html").unlink()
    assert profile("--max-rounds", 4).code == 130  # not the same request


def test_one_profile_at_a_time(profile: Verb, meter: FakeMetering, tmp_path: Path) -> None:
    with locked(tmp_path / "out.json"):
        done = profile()
    assert done.code == 2
    assert f"another profile writes {tmp_path / 'out.json'}: wait until" in done.err
    assert not (tmp_path / "out.json").exists()
    assert profile().code == 0
    assert list(tmp_path.glob("*.lock")) == []


def test_a_lock_that_was_left_locks_nothing(tmp_path: Path) -> None:
    """As kill -9 leaves it."""
    (tmp_path / "out.json.lock").touch()
    with locked(tmp_path / "out.json"), pytest.raises(UserError), locked(tmp_path / "out.json"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_goes_while_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who had it removes the file between our opening and our locking: ours is another then."""
    path = tmp_path / "out.json.lock"
    lock, first = fcntl.flock, [True]

    def late(descriptor: int, how: int) -> None:
        if first.pop():
            path.unlink()
            first.append(False)
        else:
            first.append(False)
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(tmp_path / "out.json"):
        assert path.exists()


def test_interrupted_before_the_first_point_prints_no_table(
    profile: Verb, meter: FakeMetering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "measure", interrupt)
    done = profile()
    assert (done.code, done.out) == (130, "")
    assert "0 of 2 points are measured" in done.err


def test_a_pipe_is_not_waited_for(profile: Verb, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "old.json")
    done = profile("--compare", tmp_path / "old.json")
    assert done.code == 2 and "is no regular file" in done.err


def test_files_of_older_versions_are_read(
    profile: Verb, meter: FakeMetering, tmp_path: Path
) -> None:
    """As commit f20a547 wrote them."""
    assert profile().code == 0

    def older(value: dict[str, Any]) -> None:
        del value["failed"]
        for point in value["points"]:
            del point["step_spread"], point["min_prefix"]

    change(tmp_path / "out.json", older)
    report = read_report(tmp_path / "out.json")
    assert (report.failed, report.points[0].step_spread) == ((), None)
