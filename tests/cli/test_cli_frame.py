"""The frame every verb runs in: finding verbs, and turning errors into a line and an exit code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import bitmtp_edge
from bitmtp_edge import cli as frame

VERBS = {
    "greet": '''"""Say hello.

More that help does not show.
"""
import click

@click.command()
@click.argument("name")
@click.option("--times", type=int, default=1)
def command(name, times):
    click.echo(f"hello {name} " * times)
''',
    "fail": '''"""Fail in the way asked for."""
import errno
import click
from bitmtp_edge.errors import UserError

FAULTS = {
    "user": UserError("the bundle is\\n  broken"),
    "escape": UserError("no tensor \\x1b[2J\\0 \\u00e9"),
    "endless": UserError("x" * 100000),
    "full": OSError(errno.ENOSPC, "No space left on device", "/tmp/out.bin"),
    "rename": OSError(errno.EACCES, "Permission denied", "/tmp/a", None, "/tmp/b"),
    "bare": OSError(errno.EROFS, "Read-only file system"),
    "untold": OSError("the socket is gone"),
    "memory": MemoryError("Unable to allocate 3.2 GiB"),
    "interrupt": KeyboardInterrupt(),
    "eof": EOFError(),
    "click": click.FileError("x.txt", "cannot be read"),
    "bug": ZeroDivisionError("a fault of ours"),
}

def run(how):
    if how == "missing":
        open("/nonexistent/input.gguf")
    raise FAULTS[how]

command = click.Command("fail", params=[click.Argument(["how"])], callback=run)
''',
    "quit": '''"""End with an exit code of its own."""
import click

@click.command()
@click.pass_context
def command(ctx):
    ctx.exit(3)
''',
    "explode": '''"""Cannot be imported."""
import click
raise RuntimeError("imported although nobody asked")
command: click.Command
''',
    "helper": '"""Not a verb: defines no command."""\nvalue = 1\n',
}


@pytest.fixture
def verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[frame.VerbGroup]:
    folder = tmp_path / "sample_verbs"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for verb, source in VERBS.items():
        (folder / f"{verb}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    group = frame.VerbGroup("sample_verbs", folder, no_args_is_help=False)
    monkeypatch.setattr(frame, "cli", group)
    yield group
    for module in [name for name in sys.modules if name.partition(".")[0] == "sample_verbs"]:
        del sys.modules[module]


def test_verbs_are_the_modules_that_define_a_command(verbs: frame.VerbGroup) -> None:
    assert verbs.list_commands(click.Context(verbs)) == ["explode", "fail", "greet", "quit"]


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_every_verb_without_importing_any(
    verbs: frame.VerbGroup, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert frame.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "greet    Say hello.\n" in shown
    assert "explode  Cannot be imported.\n" in shown
    assert "helper" not in shown
    assert "sample_verbs.greet" not in sys.modules


def test_a_verb_runs(verbs: frame.VerbGroup, capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(["greet", "Ada"]) == 0
    assert capsys.readouterr().out.strip() == "hello Ada"
    assert "sample_verbs.fail" not in sys.modules


def test_a_verb_chooses_its_exit_code(verbs: frame.VerbGroup) -> None:
    assert frame.main(["quit"]) == 3


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("user", "the bundle is broken"),
        ("full", "/tmp/out.bin: No space left on device"),
        ("rename", "/tmp/a -> /tmp/b: Permission denied"),
        ("bare", "Read-only file system"),
        ("untold", "the socket is gone"),
        ("escape", "no tensor \\x1b[2J\\x00 é"),
        ("endless", "x" * 2000 + " ..."),
        ("missing", "/nonexistent/input.gguf: No such file or directory"),
        ("memory", "out of memory: Unable to allocate 3.2 GiB"),
        ("click", "Could not open file 'x.txt': cannot be read"),
    ],
)
def test_a_fault_of_the_input_is_one_line_and_exit_2(
    verbs: frame.VerbGroup, capsys: pytest.CaptureFixture[str], how: str, line: str
) -> None:
    assert frame.main(["fail", how]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"bitmtp-edge: error: {line}\n"


@pytest.mark.parametrize(
    ("arguments", "told", "where"),
    [
        (["nope"], "No such command 'nope'.", "bitmtp-edge --help"),
        (["helper"], "No such command 'helper'.", "bitmtp-edge --help"),
        (["../greet"], "No such command '../greet'.", "bitmtp-edge --help"),
        (["--nope"], "--nope", "bitmtp-edge --help"),
        (["greet"], "Missing argument 'NAME'.", "bitmtp-edge greet --help"),
        (["--help=3"], "'--help' does not take a value", "bitmtp-edge --help"),
        (["greet", "--times"], "'--times' requires an argument", "bitmtp-edge greet --help"),
        (["greet", "Ada", "--times", "x"], "'x' is not a valid integer", "bitmtp-edge greet"),
    ],
)
def test_a_usage_error_is_one_line_with_a_hint(
    verbs: frame.VerbGroup,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
    where: str,
) -> None:
    assert frame.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("bitmtp-edge: error: ")
    assert told in err
    assert f"(Try '{where}" in err
    assert err.count("\n") == 1


def test_an_interrupt_is_quiet(verbs: frame.VerbGroup, capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(["fail", "interrupt"]) == 130
    out, err = capsys.readouterr()
    assert (out + err).strip() == ""


def test_an_early_end_of_input_is_told(
    verbs: frame.VerbGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.main(["fail", "eof"]) == 2
    assert "bitmtp-edge: error: the input ended early\n" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(verbs: frame.VerbGroup) -> None:
    with pytest.raises(ZeroDivisionError):
        frame.main(["fail", "bug"])


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(["--version"]) == 0
    assert capsys.readouterr().out == f"bitmtp-edge, version {bitmtp_edge.__version__}\n"


def test_every_shipped_verb_says_what_it_does_and_is_named_after_its_file() -> None:
    context = click.Context(frame.cli)
    for verb in frame.cli.list_commands(context):
        command = frame.cli.get_command(context, verb)
        assert command is not None
        assert command.name == verb
        summary = frame.verb_summary(frame.cli.folder / f"{verb}.py")
        assert summary and len(summary) < 70


def test_python_dash_m_runs_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bitmtp_edge", "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0
    assert done.stdout == f"bitmtp-edge, version {bitmtp_edge.__version__}\n"


def test_a_reader_that_went_away_is_quiet(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bitmtp_edge", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


@pytest.mark.parametrize(
    ("closed", "code", "out"),
    [("<&-", 0, "version"), (">&-", 0, ""), ("2>&-", 0, "version"), (">&- 2>&- <&-", 0, "")],
)
def test_closed_streams_read_and_write_nothing(
    closed: str, code: int, out: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m bitmtp_edge --version {closed}', sys.executable],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert out in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(("full", "verb"), [(">", "--help"), ("2>", "nope")])
def test_a_full_disk_behind_a_stream_is_exit_2(full: str, verb: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m bitmtp_edge {verb} {full}/dev/full', sys.executable],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
