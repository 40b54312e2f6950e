"""The demo, on a terminal and off it, and the picture made of it."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ..export.tiny_models import write_folder

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.py"
PICTURE = ROOT / "tools" / "demo_picture.py"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bitmtp_edge.export.pipeline import export_bundle

    folder = tmp_path_factory.mktemp("tiny")
    export_bundle(write_folder(folder / "checkpoint").path, folder / "bundle")
    return folder / "bundle"


@pytest.fixture(scope="module")
def picture() -> dict[str, Any]:
    return runpy.run_path(str(PICTURE))


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, *map(str, command)]
    return subprocess.run(arguments, capture_output=True, text=True, cwd=folder)


def test_without_a_terminal_it_is_plain_text(bundle: Path, tmp_path: Path) -> None:
    done = run(DEMO, bundle, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    *_, heading, first, second, third, _, told, _, _, why, share, _, _ = done.stdout.splitlines()
    assert heading.split()[:4] == ["prompt", "tokens", "ar", "tok/s"]
    assert [row.split()[-1] for row in (first, second, third)] == ["yes"] * 3
    assert told.startswith("Every reply has the same tokens")
    assert why.startswith("A speed-up near 1 is what a CPU and a model this small give: ")
    assert re.search(r"and \d+% of the$", share)
    lines = done.stdout.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(("ar ", "nested "))]
    assert len(starts) == 6
    for plain, nested in zip(starts[::2], starts[1::2], strict=True):
        text = [line[8:] for line in lines[plain:nested]]
        assert text == [line[8:] for line in lines[nested : nested + len(text)]]


def test_accepted_counts_are_short() -> None:
    told = runpy.run_path(str(DEMO))["accepted_counts"]
    head = "accepted of 2 drafts, as accepted:steps"
    assert told([2, 0, 2], 2) == f"{head} 0:1 1:0 2:2; each: 2 0 2"
    assert told([2] * 30, 2) == f"{head} 0:0 1:0 2:30; first 20: {' '.join('2' * 20)}"


def test_rates_are_medians_of_runs_in_alternating_order() -> None:
    order: list[str] = []

    class Scripted:
        def decoder(self, policy: str) -> str:
            return policy

        def reply(self, policy: str, ids: list[int], tokens: int) -> SimpleNamespace:
            order.append(policy)
            return SimpleNamespace(decode_s=float(len(order)), finish_reason="length")

    shown = {"ar": SimpleNamespace(decode_s=9.0), "nested": SimpleNamespace(decode_s=0.5)}
    seconds = runpy.run_path(str(DEMO))["decode_seconds"](Scripted(), shown, [1])
    assert order == ["nested", "ar", "ar", "nested"]
    assert seconds == [3.0, 1.0]


@pytest.mark.parametrize("arguments", [(), ("a", "b")])
def test_wrong_arguments_are_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run(DEMO, *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"usage: {DEMO} BUNDLE\n"


def test_a_missing_bundle_is_one_line(tmp_path: Path) -> None:
    done = run(DEMO, tmp_path / "none", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("demo: error: ") and done.stderr.count("\n") == 1


def test_the_picture_shows_the_colours_of_a_terminal(bundle: Path, tmp_path: Path) -> None:
    done = run(PICTURE, bundle, tmp_path / "demo.svg", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    drawn = ElementTree.parse(tmp_path / "demo.svg").getroot()
    texts = list(drawn.iter("{http://www.w3.org/2000/svg}text"))
    assert any(text.text == "nested" and text.get("fill") == "#6fc3ff" for text in texts)
    assert any(text.text and "tok/s" in text.text for text in texts)


def test_no_color_is_respected_on_a_terminal(
    bundle: Path, picture: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = picture["record"]
    shown = record(["env", "NO_COLOR=1", sys.executable, str(DEMO), str(bundle)])
    assert "\x1b" not in shown and "nested" in shown
    assert "\x1b[36mnested" in record([sys.executable, str(DEMO), str(bundle)])


def test_a_reader_that_went_away_is_quiet(bundle: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(DEMO), str(bundle)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


def test_a_demo_that_fails_draws_nothing(picture: dict[str, Any]) -> None:
    with pytest.raises(SystemExit) as end:
        picture["record"]([sys.executable, "-c", "import sys; sys.exit(3)"])
    assert end.value.code == 3


def test_spans_keep_their_columns(picture: dict[str, Any]) -> None:
    line = "  ab \x1b[32mcd\x1b[0m  e"
    assert list(picture["spans"](line)) == [(2, "", "ab"), (5, "32", "cd"), (9, "0", "e")]


def test_text_is_escaped(picture: dict[str, Any]) -> None:
    drawn = picture["draw"]("a < b\x02\r\n")
    assert "a &lt; b?" in drawn
    ElementTree.fromstring(drawn)


def test_text_wraps_in_its_column_and_keeps_its_own_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", "20")
    screen = runpy.run_path(str(DEMO))["Screen"]()
    screen.column("ar")
    for piece in ("one tw", "o three", " four:\n  fi", "ve\n\n", "six \n\n"):
        screen.stream(piece)
    screen.end()
    shown = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in shown] == [
        "ar      one two",
        "        three four:",
        "          five",
        "",
        "        six",
    ]
