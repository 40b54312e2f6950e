"""`bitmtp-edge power`: a reading as JSON and text, modes by a stand-in for nvpmodel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bitmtp_edge.power import registry
from bitmtp_edge.power.mode_note import NOTE

from ..power import trees
from ..power.jtop_stubs import FAILS, HANGS, NANO, stub
from ..power.nvpmodel_stub import Board, board
from .conftest import Verb

DATA = Path(__file__).parents[1] / "power/data/tegrastats.txt"
AGX = "sum of VDD_GPU_SOC, VDD_CPU_CV, VIN_SYS_5V0, VDDQ_VDD2_1V8AO"


@pytest.mark.parametrize(
    ("build", "watts", "total_is"),
    [
        (trees.orin_nx, 30.24, "VDD_IN"),
        (trees.orin_nano, 5.13, "VDD_IN"),
        (trees.agx_orin, 9.11, AGX),
        (trees.legacy_iio, 4.32, "VDD_IN"),
    ],
)
def test_a_reading(
    build: Callable[[Path], Path], watts: float, total_is: str, verb: Verb, tmp_path: Path
) -> None:
    build(tmp_path)
    done = verb("power", "--root", tmp_path, "--json")
    assert done.code == 0
    assert list(done.json) == ["rails", "total_mw", "total_is", "source"]
    assert done.json["total_mw"] / 1000 == pytest.approx(watts, abs=0.005)
    assert (done.json["total_is"], done.json["source"]) == (total_is, "ina3221")
    assert done.err.count("\n") == 1  # one notice: jtop is of this machine


def test_as_text(verb: Verb, tmp_path: Path) -> None:
    trees.orin_nano(tmp_path)
    done = verb("power", "--root", tmp_path, "--source", "ina3221")
    assert done.out.splitlines() == [
        "5.133 W  VDD_IN, by ina3221",
        "  VDD_IN              5133 mW",
        "  VDD_CPU_GPU_CV      1064 mW",
        "  VDD_SOC             1540 mW",
    ]
    assert done.err == ""


@pytest.mark.parametrize("source", [(), ("--source", "tegrastats")])
def test_a_file_of_tegrastats(source: tuple[str, ...], verb: Verb) -> None:
    done = verb("power", "--tegrastats", DATA, *source, "--json")
    assert (done.json["total_mw"], done.json["source"]) == (23521, "tegrastats")


def test_jtop(verb: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(stub(tmp_path, repr(NANO))))
    done = verb("power", "--source", "jtop", "--json")
    assert (done.json["total_mw"], done.json["total_is"]) == (5133, "VDD_IN")


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (FAILS["no service"][0], "The jtop.service is not active. Please run: x"),
        (FAILS["it dies"][0], "it ended without an answer"),
        (HANGS["while it connects"], "no answer within 0.2 s"),
    ],
)
def test_a_jtop_that_does_not_work(
    parts: dict[str, str],
    told: str,
    verb: Verb,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if parts in HANGS.values():
        monkeypatch.setattr(registry, "NAMED_WITHIN_S", 0.3)
    monkeypatch.syspath_prepend(str(stub(tmp_path, **parts)))
    refused = verb("power", "--source", "jtop").refused()
    assert refused.startswith("bitmtp-edge: error: power source jtop does not work here: ")
    assert told in refused


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--source", "volts"), "there is no power source 'volts': take jtop, ina3221"),
        (("--root", "nowhere"), "'nowhere' does not exist"),
        (("--tegrastats", "nowhere"), "nowhere: No such file or directory"),
        (("--tegrastats", DATA, "--source", "rapl"), "--tegrastats FILE is no source rapl"),
        (("--modes", "--restore-mode"), "are different things: give one"),
        (("--reboot",), "'--reboot' goes with --set-mode NAME or --restore-mode"),
        (("true",), "'true' goes with --set-mode NAME"),
        (("--set-mode", "15W", "--reboot", "true"), "leave --reboot out"),
        (("--set-mode", "15W", "--json", "true"), "leave --json out"),
        (("--modes", "--source", "rapl"), "are of a reading"),
    ],
)
def test_refusals(arguments: tuple[object, ...], told: str, verb: Verb) -> None:
    assert told in verb("power", *arguments).refused()


def test_nothing_to_read(verb: Verb, tmp_path: Path) -> None:
    refused = verb("power", "--root", tmp_path).refused()
    for source in ("jtop", "ina3221", "tegrastats", "nvml", "rapl"):
        assert f"{source}: " in refused


@pytest.fixture
def nx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    here = board(tmp_path)
    monkeypatch.setenv("PATH", f"{here.bin}:{os.environ['PATH']}")
    return here


def test_names_do_not_steer_the_terminal(verb: Verb, nx: Board) -> None:
    trees.channel(trees.chip(nx.root, "1-0040", 1), 1, "A\x1b[2JB", 5000, 100)
    done = verb("power", "--root", nx.root)
    assert "  A\\x1b[2JB " in done.out and "\x1b" not in done.out + done.err
    conf = nx.root / "etc/nvpmodel.conf"
    conf.write_text(conf.read_text() + "< POWER_MODEL ID=9 NAME=\x1b[31mX >\n")
    done = verb("power", "--root", nx.root, "--modes")
    assert "  9  \\x1b[31mX" in done.out and "\x1b" not in done.out


def test_modes(nx: Board, verb: Verb) -> None:
    done = verb("power", "--root", nx.root, "--modes")
    assert done.out.splitlines() == [
        "  0  MAXN_SUPER",
        "  1  10W               takes a reboot",
        "  2  15W               current, default",
        "  3  25W",
    ]
    told = verb("power", "--root", nx.root, "--modes", "--json").json
    assert told["current"] == "15W" and told["go_back_to"] is None
    assert told["modes"][1] == {
        "id": 1,
        "name": "10W",
        "current": False,
        "default": False,
        "reboot": True,
    }
    assert told["clocks"]["jetson_clocks"] is None


def test_modes_and_clocks(nx: Board, verb: Verb) -> None:
    nx.misbehave("silent")
    for which, megahertz in (("cur", 612), ("min", 306), ("max", 918)):
        folder = nx.root / "sys/class/devfreq/17000000.gpu"
        trees.write(folder / f"{which}_freq", megahertz * 1_000_000)
    done = verb("power", "--root", nx.root, "--modes")
    assert done.out.splitlines()[-3:] == [
        "now: unknown",
        "GPU 612 MHz (306 to 918)",
        "jetson_clocks off",
    ]


def test_set_for_good(nx: Board, verb: Verb) -> None:
    done = verb("power", "--root", nx.root, "--set-mode", "25w", "--json")
    assert done.json == {"mode": "25W", "rebooting": False}
    assert nx.mode == 3


def test_a_reboot_is_asked_for(nx: Board, verb: Verb) -> None:
    refused = verb("power", "--root", nx.root, "--set-mode", "10W").refused()
    assert "takes a reboot: add --reboot" in refused
    done = verb("power", "--root", nx.root, "--set-mode", "10W", "--reboot")
    assert done.out == "the board reboots into 10W\n"


def test_a_command_in_a_mode(nx: Board, verb: Verb) -> None:
    arguments = ("power", "--root", nx.root, "--set-mode", "25W", "sh", "-c")
    done = verb(*arguments, f"cp {nx.bin}/state {nx.bin}/seen; exit 7")
    assert done.code == 7
    assert (nx.bin / "seen").read_text() == "3"
    assert nx.mode == 2
    assert done.err == "bitmtp-edge: in power mode 25W; nothing here tells of throttling\n"
    trees.write(nx.root / "sys/class/thermal/cooling_device0/type", "cpufreq-cpu0")
    for state, told in ((0, "no throttling seen"), (1, "throttled by cpufreq-cpu0")):
        trees.write(nx.root / "sys/class/thermal/cooling_device0/cur_state", state)
        done = verb(*arguments, "true")
        assert done.err == f"bitmtp-edge: in power mode 25W; {told}\n"


def test_a_command_that_is_not_there(nx: Board, verb: Verb) -> None:
    refused = verb("power", "--root", nx.root, "--set-mode", "25W", "no-such-command").refused()
    assert " no-such-command cannot be run: No such file" in refused
    assert nx.mode == 2


def started(nx: Board, command: str) -> subprocess.Popen[bytes]:
    """`power --set-mode 25W sh -c COMMAND`, once the shell has said that it runs."""
    program = "import sys; from bitmtp_edge.cli import main; sys.exit(main())"
    options = ("power", "--root", str(nx.root), "--set-mode", "25W")
    process = subprocess.Popen(
        [sys.executable, "-c", program, *options, "sh", "-c", f"echo runs; {command}"],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"runs\n"
    assert nx.mode == 3
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_given_back_after_a_signal(number: signal.Signals, nx: Board) -> None:
    with started(nx, "exec sleep 600") as process:
        process.send_signal(number)
        assert process.wait() == 130
    assert nx.mode == 2


def test_what_a_killed_run_leaves(nx: Board, verb: Verb) -> None:
    with started(nx, "exec cat") as process:
        process.kill()
    done = verb("power", "--root", nx.root, "--modes")
    assert "an earlier run left its mode; 15W was before" in done.err
    assert verb("power", "--root", nx.root, "--restore-mode").out == "power mode 15W\n"
    assert nx.mode == 2
    told = verb("power", "--root", nx.root, "--restore-mode", "--json").json
    assert told == {"mode": None, "rebooting": False}


def test_going_back_may_take_a_reboot(nx: Board, verb: Verb) -> None:
    trees.write(nx.root / NOTE, '{"go_back_to": "10W", "waiting": true}')
    told = verb("power", "--root", nx.root, "--modes").err
    assert "a run waits to be given again behind a reboot; 10W was before" in told
    refused = verb("power", "--root", nx.root, "--restore-mode").refused()
    assert refused.count("sudo nvpmodel -m 1") == 1 and "add --reboot" in refused
    done = verb("power", "--root", nx.root, "--restore-mode", "--reboot")
    assert (done.code, done.out) == (0, "the board reboots into 10W\n")
    assert done.err == "bitmtp-edge: the board reboots now, back into power mode 10W\n"


def test_a_command_that_sets_another_mode(nx: Board, verb: Verb) -> None:
    done = verb("power", "--root", nx.root, "--set-mode", "25w", "sh", "-c", "nvpmodel -m 0")
    assert done.err.splitlines() == [
        "bitmtp-edge: power mode 25W was held, and at the end the mode is MAXN_SUPER: "
        "something else sets it",
        "bitmtp-edge: in power mode 25W at first; nothing here tells of throttling",
    ]
    assert (done.code, nx.mode) == (0, 2)


@pytest.mark.parametrize("note", ['{"go_back_to": "NOPE"}', "[" * 50_000])
def test_a_note_of_no_mode_is_dropped(note: str, nx: Board, verb: Verb) -> None:
    """The mode goes back to what it was when the command began, the first time too."""
    trees.write(nx.root / NOTE, note)
    done = verb("power", "--root", nx.root, "--set-mode", "25W", "--", "true")
    assert (done.code, nx.calls, nx.mode) == (0, ["-m 3", "-m 2"], 2)
    dropped = "which is dropped: there is no power mode 'NOPE' here: take one of MAXN_SUPER"
    assert (dropped in done.err) == ("NOPE" in note)
    assert (nx.root / NOTE).read_text() == ""


def test_restoring_a_mode_that_is_not_there(nx: Board, verb: Verb) -> None:
    trees.write(nx.root / NOTE, '{"go_back_to": "NOPE"}')
    done = verb("power", "--root", nx.root, "--restore-mode")
    assert (done.code, done.out) == (0, "no mode was left to restore\n")
    assert "'NOPE'" in done.err and nx.calls == []
