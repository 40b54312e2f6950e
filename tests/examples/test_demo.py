"""The demo of the shipped model, on a terminal and off it."""

from __future__ import annotations

import math
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.session import Session

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.py"
TOKENS = 48
SHORT = (
    "import sys, demo; demo.MOST_SHOWN = float('inf'); "
    f"demo.TOKENS = {TOKENS}; sys.exit(demo.main())"
)
TABLE = ["tokens", "iterations", "tokens/iteration", "tokens/s", "verified", "right"]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the script defines."""
    monkeypatch.syspath_prepend(str(DEMO.parent))
    return runpy.run_path(str(DEMO))


@pytest.fixture(scope="module")
def picture() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "demo_picture.py"))


@pytest.fixture(scope="module")
def on_a_terminal(picture: dict[str, Any], tiny_ternary_bundle: Bundle) -> Any:
    """``on_a_terminal(columns=..., lines=..., NAME=value)``: what the demo writes to one of that
    size, with short replies and not slowed down."""

    def written(columns: int = 92, lines: int = 120, **environment: str) -> str:
        variables = [f"{name}={value}" for name, value in environment.items()]
        path = f"PYTHONPATH={DEMO.parent}"
        command = ["env", path, *variables, sys.executable, "-c", SHORT]
        pieces = picture["record"]([*command, str(tiny_ternary_bundle.path)], columns, lines)
        return "".join(text for text, _ in pieces)

    return written


@pytest.fixture(scope="module")
def low(on_a_terminal: Any) -> str:
    """On a terminal that is wide, and has fewer lines than the replies take."""
    shown: str = on_a_terminal(lines=6)
    return shown


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, *map(str, command)]
    return subprocess.run(arguments, capture_output=True, text=True, cwd=folder)


def test_without_a_terminal_it_is_plain_text(
    demo: dict[str, Any], tiny_ternary_bundle: Bundle, tmp_path: Path
) -> None:
    done = run(DEMO, tiny_ternary_bundle.path, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "\r" not in done.stdout
    lines = done.stdout.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert [line[:8].strip() for line in lines if re.match(r"(ar|hybrid) {2,6}", line)][:2] == [
        "ar",
        "hybrid",
    ]
    [heading] = [at for at, line in enumerate(lines) if line.split() == TABLE]
    for name, line in zip(("ar", "hybrid"), lines[heading + 1 : heading + 3], strict=True):
        told, tokens, iterations, each, rate, verified, right, *_ = line.split()
        assert told == name and right in "0123"
        assert float(each) == pytest.approx(int(tokens) / int(iterations), abs=0.006)
        assert float(rate) > 0
        assert (verified == "-") or name == "hybrid"
    assert "times the tokens a second here" in " ".join(done.stdout.split())
    judged = re.findall(
        r"reference answer (\d+): ar (right|wrong), hybrid (right|wrong)\n", done.stdout
    )
    assert [answer for answer, *_ in judged] == [answer for _, answer in demo["PROMPTS"]]
    rights = [line.split()[6] for line in lines[heading + 1 : heading + 3]]
    assert rights == [str(sum(each[side] == "right" for each in judged)) for side in (1, 2)]


def test_side_by_side_on_a_wide_terminal(low: str) -> None:
    assert re.search(r"\x1b\[1mar\x1b\[0m +\x1b\[2m │ \x1b\[0m\x1b\[1mhybrid\x1b\[0m", low)
    assert "\x1b[4;32m" in low or "\x1b[4;36m" in low
    moves = [int(up) for up in re.findall(r"\x1b\[(\d+)A", low)]
    assert len(moves) > 100
    assert max(moves) == 5


def test_both_replies_stand_there_in_full(
    demo: dict[str, Any], picture: dict[str, Any], tiny_ternary_bundle: Bundle, low: str
) -> None:
    terminal = picture["Terminal"]()
    terminal.write(low, 0.0)
    shown = ["".join(cell.character for cell in line) for line in terminal.lines]
    texts = [line.split(" │") for line in shown if " │" in line]
    left, right = ("".join(text[side] for text in texts) for side in (0, 1))
    with Session.open(tiny_ternary_bundle.path) as session:
        for name, half in zip(demo["POLICIES"], (left, right), strict=True):
            for prompt, _ in demo["PROMPTS"]:
                decoder = session.decoder(session.policy(name))
                result = session.reply(decoder, session.prompt_ids(prompt), TOKENS)
                assert bare(result.text) in bare(half)


def bare(text: str) -> str:
    """Without what wrapping changes."""
    return "".join(c if c.isprintable() else "?" for c in text if not c.isspace())


def test_a_narrow_terminal_stacks(on_a_terminal: Any) -> None:
    shown = on_a_terminal(columns=60)
    assert "\x1b[36mhybrid" in shown and "│" not in shown
    assert not re.search(r"\x1b\[\d*[A-Za-ln-z]", shown)


def test_no_color_is_respected_on_a_terminal(on_a_terminal: Any) -> None:
    shown = on_a_terminal(NO_COLOR="1")
    assert "│ hybrid" in shown
    assert not re.search(r"\x1b\[[\d;]*m", shown)


def test_a_bundle_without_masks_is_one_line(tiny_bundle: Bundle, tmp_path: Path) -> None:
    done = run(DEMO, tiny_bundle.path, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("demo: error: policy hybrid does not fit")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", ["demo.py", "demo_smollm2.py"])
@pytest.mark.parametrize("arguments", [(), ("a", "b")])
def test_wrong_arguments_are_one_line(
    script: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(DEMO.with_name(script), *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"usage: {DEMO.with_name(script)} BUNDLE\n"


@pytest.mark.parametrize("script", ["demo.py", "demo_smollm2.py"])
def test_a_missing_bundle_is_one_line(script: str, tmp_path: Path) -> None:
    done = run(DEMO.with_name(script), tmp_path / "none", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("demo: error: ") and done.stderr.count("\n") == 1


def test_closed_streams_are_no_fault(tiny_ternary_bundle: Bundle) -> None:
    """``>&-``: what the demo says goes nowhere."""
    command = shlex.join([sys.executable, str(DEMO), str(tiny_ternary_bundle.path)])
    done = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_went_away_is_quiet(tiny_ternary_bundle: Bundle, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(DEMO), str(tiny_ternary_bundle.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


def test_rates_are_medians_of_runs_in_alternating_order(demo: dict[str, Any]) -> None:
    order: list[str] = []

    class Scripted:
        def prompt_ids(self, prompt: str) -> list[int]:
            return [1]

        def decoder(self, policy: str) -> str:
            return policy

        def reply(self, policy: str, ids: list[int], tokens: int) -> SimpleNamespace:
            order.append(policy)
            return SimpleNamespace(decode_s=float(len(order)), finish_reason="length")

    pairs = [(Scripted(), "ar"), (Scripted(), "hybrid")]
    replies = demo["timed"](pairs, "prompt")
    assert order == ["ar", "hybrid", "hybrid", "ar", "ar", "hybrid"]
    assert [(reply.seconds, reply.fastest) for reply in replies] == [(4.0, 1.0), (3.0, 2.0)]


@pytest.mark.parametrize(("seconds", "told"), [(1.2, None), (3.25, "half took 3.2 times as long")])
def test_a_busy_machine_is_told(demo: dict[str, Any], seconds: float, told: str | None) -> None:
    replies = [SimpleNamespace(seconds=each, fastest=1.0) for each in (seconds, seconds)]
    sentence = demo["busy"](replies)
    assert sentence == "" if told is None else told in sentence


def test_each_advances_at_its_own_pace_in_slow_motion(
    demo: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the time of one iteration of the slow one, the fast one runs four."""
    order: list[str] = []
    drawn: list[bool] = []
    notes: list[str] = []
    now = [0.0]

    class Scripted:
        def __init__(self, name: str, seconds: float, count: int) -> None:
            self.policy = SimpleNamespace(name=name)
            self.seconds, self.count = seconds, count
            self.result = SimpleNamespace(iterations=count)

        def stream(self) -> Any:
            for _ in range(self.count):
                order.append(f"{self.policy.name} {now[0]:.3f}")
                yield self.policy.name, ""

    def wait(seconds: float) -> None:
        now[0] += seconds

    show = demo["show_beside"]
    monkeypatch.setitem(show.__globals__, "perf_counter", lambda: now[0])
    monkeypatch.setitem(show.__globals__, "sleep", wait)
    monkeypatch.setitem(show.__globals__, "MOST_SHOWN", 20.0)
    screen = SimpleNamespace(
        half=40, redraw=lambda left, right, last: drawn.append(last), note=notes.append
    )
    show(screen, [Scripted("ar", 0.05, 5), Scripted("hybrid", 0.039 * 2, 2)])
    ar = [f"ar {0.05 * (number + 1):.3f}" for number in range(5)]
    assert order == [*ar[:3], "hybrid 0.195", *ar[3:], "hybrid 0.390"]
    assert drawn == [False] * (len(drawn) - 1) + [True]
    assert notes == ["shown 5 times slower than measured"]


def test_block_sizes(demo: dict[str, Any]) -> None:
    result = SimpleNamespace(accepted_lengths=[8, 0, 5], verified=[False, True, True])
    assert demo["block_sizes"](result) == "8 1v 6v"


def test_the_conclusion_is_what_was_measured(demo: dict[str, Any]) -> None:
    def reply(tokens: int, iterations: int, seconds: float) -> SimpleNamespace:
        result = SimpleNamespace(
            generated_tokens=tokens, iterations=iterations, token_ids=[1] * tokens
        )
        return SimpleNamespace(result=result, seconds=seconds, fastest=seconds)

    told = demo["conclusion"]([reply(100, 100, 1.0)], [reply(120, 20, 0.8)])
    assert "ar took 10.0 ms, one of hybrid 40.0 ms" in told
    assert "6.00 times the tokens an iteration were 1.50 times the tokens a second here" in told
    assert "on 0 of 1 prompts" in told
    assert math.isclose(demo["total"]([reply(3, 2, 0.5)] * 2)[2], 1.0)
