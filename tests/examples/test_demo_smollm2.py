"""The demo of nested decoding, on a terminal and off it."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bitmtp_edge.bundle import Bundle

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo_smollm2.py"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the script defines."""
    monkeypatch.syspath_prepend(str(DEMO.parent))
    return runpy.run_path(str(DEMO))


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, *map(str, command)]
    return subprocess.run(arguments, capture_output=True, text=True, cwd=folder)


def test_without_a_terminal_it_is_plain_text(tiny_bundle: Bundle, tmp_path: Path) -> None:
    done = run(DEMO, tiny_bundle.path, folder=tmp_path)
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


def test_accepted_counts_are_short(demo: dict[str, Any]) -> None:
    told = demo["accepted_counts"]
    head = "accepted of 2 drafts, as accepted:steps"
    assert told([2, 0, 2], 2) == f"{head} 0:1 1:0 2:2; each: 2 0 2"
    assert told([2] * 30, 2) == f"{head} 0:0 1:0 2:30; first 20: {' '.join('2' * 20)}"


def test_rates_are_medians_of_runs_in_alternating_order(demo: dict[str, Any]) -> None:
    order: list[str] = []

    class Scripted:
        def decoder(self, policy: str) -> str:
            return policy

        def reply(self, policy: str, ids: list[int], tokens: int) -> SimpleNamespace:
            order.append(policy)
            return SimpleNamespace(decode_s=float(len(order)), finish_reason="length")

    shown = {"ar": SimpleNamespace(decode_s=9.0), "nested": SimpleNamespace(decode_s=0.5)}
    seconds = demo["decode_seconds"](Scripted(), shown, [1])
    assert order == ["nested", "ar", "ar", "nested"]
    assert seconds == [3.0, 1.0]
