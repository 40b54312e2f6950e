"""Prompt files, the time that Python takes, and how far the steps of a run spread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bitmtp_edge import benchmark, session
from bitmtp_edge.benchmark import read_prompts
from bitmtp_edge.benchmark_report import StepCost
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.base import ReplayState, StepOutput, Window
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.errors import UserError

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", " one \n\n# two\n", ["one", "# two"]),
        ("windows.txt", "\ufeffone\r\ntwo\u2028three\r\n", ["one", "two\u2028three"]),
        ("a.jsonl", '{"prompt": "a\u2028b"}\n', ["a\u2028b"]),
        ("a.jsonl", '{"prompt": "one\\ntwo", "id": 3}\n\n{"prompt": " x"}\n', ["one\ntwo", " x"]),
    ],
)
def test_prompt_files(tmp_path: Path, name: str, text: str, expected: Sequence[str]) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert read_prompts(path) == expected


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("a.txt", b"", "holds no prompts"),
        ("a.txt", b"\n \n", "holds no prompts"),
        ("a.txt", b"ok\n\xff", "not UTF-8 text (byte 3)"),
        ("a.jsonl", b'{"prompt": "x"}\n{', "line 2: expected an object"),
        ("a.jsonl", b"[1]", "line 1: expected an object"),
        ("a.jsonl", b'{"prompt": 3}', "line 1: expected an object"),
        ("a.jsonl", b'{"prompt": ""}', "line 1: expected an object"),
        ("a.jsonl", b"[" * 100_000, "line 1: expected an object"),
    ],
)
def test_prompt_files_that_are_none(tmp_path: Path, name: str, data: bytes, told: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"\.(txt|jsonl)") as error:
        read_prompts(path)
    assert told in str(error.value)


def test_the_shipped_prompts_can_be_read() -> None:
    assert len(read_prompts(ROOT / "examples" / "prompts.txt")) == 8


def test_an_interrupt_ends_the_measurement_of_python(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: CpuEngine, state: ReplayState, window: Window) -> StepOutput:
        raise KeyboardInterrupt

    with session.Session.open(tiny_bundle.path) as opened:
        monkeypatch.setattr(CpuEngine, "replay", interrupted)
        with pytest.raises(KeyboardInterrupt):
            benchmark.python_ms_per_step(opened, opened.policy("ar"), [1, 2, 3])


def test_the_time_of_python_is_measured_on_the_cpu_engine_alone(tiny_bundle: Bundle) -> None:
    pytest.importorskip("onnxruntime")
    with session.Session.open(tiny_bundle.path, "onnxruntime") as opened:
        assert benchmark.python_ms_per_step(opened, opened.policy("ar"), [1, 2]) is None


def test_the_spread_of_a_run_is_that_of_its_steps_by_how_often_they_ran() -> None:
    steps = [
        StepCost("draft", 4, 4, 512, 30, 5.0, (4.0, 6.0)),
        StepCost("verify", 1, 1, 512, 10, 5.0, (5.0, 5.0)),
    ]
    assert benchmark._spread(steps) == pytest.approx((30 * 1.5 + 10 * 1.0) / 40)
