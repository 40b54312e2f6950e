"""Progress: plain lines in a log, a redrawn bar on a terminal."""

from __future__ import annotations

import io

import pytest

from bitmtp_edge import progress
from bitmtp_edge.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_each_tenth() -> None:
    log = io.StringIO()
    with Progress(300, "quantize", "tensors", stream=log) as shown:
        for _ in range(300):
            shown.advance()
    lines = log.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("quantize:  10%  30/300 tensors")
    assert lines[-1].startswith("quantize: 100%  300/300 tensors")
    assert "\r" not in log.getvalue()


def test_a_log_gets_one_line_for_a_step_over_several_tenths() -> None:
    log = io.StringIO()
    with Progress(2, "export", stream=log) as shown:
        shown.advance()
        shown.advance()
    assert [line.split()[1] for line in log.getvalue().splitlines()] == ["50%", "100%"]


def test_nothing_to_do_is_done() -> None:
    log = io.StringIO()
    with Progress(0, "export", stream=log):
        pass
    assert log.getvalue().startswith("export: 100%  0/0 steps")


def test_a_terminal_gets_one_redrawn_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Terminal()
    with Progress(4, "export", stream=terminal) as shown:
        for _ in range(4):
            shown.advance()
    text = terminal.getvalue()
    assert text.count("\n") == 1 and text.endswith("\n")
    frames = text.split("\r")[1:]
    assert all(len(frame.removesuffix("\n").removesuffix("\x1b[K")) < 60 for frame in frames)
    assert "." in frames[0] and "#" not in frames[0]
    assert "#" in frames[-1] and "." not in frames[-1]


def test_what_is_too_long_for_the_terminal_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    with Progress(4, "export", stream=terminal) as shown:
        shown.note = "x" * 100
    frames = terminal.getvalue().split("\r")[1:]
    assert max(len(frame.removesuffix("\n").removesuffix("\x1b[K")) for frame in frames) == 39


def test_a_line_of_its_own() -> None:
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        with Progress(4, "export", stream=stream) as shown:
            shown.tell("a notice")
    assert "\ra notice\x1b[K\n\rexport " in terminal.getvalue()
    assert log.getvalue() == "a notice\n"


def test_an_error_starts_on_a_line_of_its_own() -> None:
    terminal = Terminal()
    with pytest.raises(ValueError), Progress(4, "export", stream=terminal) as shown:
        shown.advance()
        raise ValueError
    assert terminal.getvalue().endswith("1/4 steps  0 s\x1b[K\n")
