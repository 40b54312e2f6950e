"""``bitmtp-edge build``: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.tensorrt_manifest import plan_folder

from ..fakes.board import Board
from .conftest import Verb


def test_tensorrt(verb: Verb, board: Board, board_bundle: Bundle) -> None:
    done = verb("build", board_bundle.path, "--target", "tensorrt", "--states", "*-c512")
    assert done.code == 0
    (line,) = done.out.splitlines()
    assert line.startswith(
        "18 engines for TensorRT, 18 of them built now: 0.12 MiB in all, beside "
    )
    assert "beside 0.4 MiB of weights.bin" in line and "untested on real TensorRT" in line
    assert "engines for TensorRT: 100%  18/18 engines" in done.err
    board.restart()
    done = verb("build", board_bundle.path, "--target", "tensorrt", "--states", "*-c512", "--json")
    assert done.json.keys() == {"target", "engines", "built", "engine_bytes", "weight_bytes"}
    assert done.json["built"] == 0 and len(done.json["engines"]) == 18 and done.err == ""
    assert done.json["engine_bytes"] < done.json["weight_bytes"]


def test_interrupted(verb: Verb, board: Board, board_bundle: Bundle) -> None:
    def interrupt(count: int) -> None:
        if count == 2:
            raise KeyboardInterrupt

    board.trt.before_build = interrupt
    done = verb("build", board_bundle.path, "--target", "tensorrt")
    assert done.code == 130
    told = "build interrupted: the engines that were built are kept; the same command goes on"
    assert done.err.splitlines()[-1] == f"bitmtp-edge: {told}"
    assert len(list(plan_folder(board_bundle).glob("*.plan"))) == 2
    board.at_rest()


def test_refusals(verb: Verb, board: Board, board_bundle: Bundle) -> None:
    board.trt.refusal["parse"] = "head: wrong\nin two lines"
    told = verb("build", board_bundle.path, "--target", "tensorrt", "--states", "verify-m1-h1-c512")
    assert told.code == 2
    assert told.err.splitlines()[-1].endswith(
        "network of verify-m1-h1-c512: head: wrong in two lines"
    )
    told = verb("build", board_bundle.path, "--target", "tensorrt", "--states", "nothing")
    assert "--states 'nothing' fits no replay state" in told.refused()
    assert "--target" in verb("build", board_bundle.path).refused()


def test_a_notice_does_not_steer_the_terminal(
    verb: Verb, board: Board, board_bundle: Bundle
) -> None:
    asked = ("build", board_bundle.path, "--target", "tensorrt", "--states", "verify-m1-h1-c512")
    verb(*asked)
    path = plan_folder(board_bundle) / "manifest.json"
    value = json.loads(path.read_text())
    value["built_for"]["sdk"] = "\x1b]0;owned\x07\nbitmtp-edge: all is well"
    path.write_text(json.dumps(value))
    board.restart()
    done = verb(*asked)
    notice = done.err.splitlines()[0]
    assert done.code == 0 and "\x1b" not in done.err and "\x07" not in done.err
    assert "bitmtp-edge was \\x1b]0;owned\\x07 bitmtp-edge: all is well when they" in notice


@pytest.mark.parametrize("states", [(), ("--states", "verify-*-c512")])
def test_the_cpu_only_checks(
    verb: Verb, tiny_ternary_bundle: Bundle, states: tuple[str, ...]
) -> None:
    done = verb("build", tiny_ternary_bundle.path, "--target", "cpu", *states)
    assert done.code == 0
    count = 11 if states else 36
    assert done.out.startswith(f"engine cpu runs all {count} replay states: weights 0.4 MiB, kv ")
    assert not plan_folder(tiny_ternary_bundle).exists()


def test_a_check_as_json(verb: Verb, tiny_ternary_bundle: Bundle) -> None:
    done = verb("build", tiny_ternary_bundle.path, "--target", "cpu", "--json")
    assert done.json.keys() == {"target", "states", "memory"}
    assert done.json["memory"].keys() == {"weights", "kv", "arena", "workspace"}


def test_an_engine_that_does_not_work_here(verb: Verb, bundle: Path) -> None:
    told = verb("build", bundle, "--target", "cuda").refused()
    assert "engine cuda does not work here: no CUDA device" in told


def test_verify_takes_engines_that_were_built(
    verb: Verb, board: Board, board_bundle: Bundle
) -> None:
    """And says what to do where none were. (ONNX Runtime is the judge.)"""
    done = verb("verify", board_bundle.path, "--windows", 2)
    assert done.code == 0
    command = f"bitmtp-edge build {board_bundle.path} --target tensorrt"
    told = f"tensorrt: not compared: {board_bundle.path} has no engines for TensorRT: build them "
    assert done.out.startswith(told) and command in done.out
    verb("build", board_bundle.path, "--target", "tensorrt", "--states", "*-c512")
    board.restart()
    done = verb("verify", board_bundle.path, "--windows", 4)
    assert done.code == 0
    agrees = "tensorrt agrees with onnxruntime: 4 windows, whose operators it does not show, "
    assert agrees in done.out
    board.at_rest()


def test_run_says_which_engine_to_build(verb: Verb, board: Board, board_bundle: Bundle) -> None:
    verb("build", board_bundle.path, "--target", "tensorrt", "--states", "verify-*-c512")
    board.restart()
    told = verb("run", board_bundle.path, "--engine", "tensorrt", "--prompt", "the", "--raw")
    assert told.code == 2
    assert told.err.splitlines()[-1].endswith(
        f"bitmtp-edge build {board_bundle.path} --target tensorrt --states draft-m4-h4-c512"
    )
    done = verb(
        *("run", board_bundle.path, "--engine", "tensorrt", "--prompt", "the", "--raw"),
        *("--policy", "ar", "--max-new-tokens", 8, "--json"),
    )
    want = verb(
        *("run", board_bundle.path, "--engine", "cpu", "--prompt", "the", "--raw"),
        *("--policy", "ar", "--max-new-tokens", 8, "--json"),
    )
    assert done.code == 0 and done.json["text"] == want.json["text"]
    board.at_rest()


def test_doctor_calls_it_untested(verb: Verb, board: Board) -> None:
    (line,) = (line for line in verb("doctor").out.splitlines() if " engine tensorrt " in line)
    assert line.startswith("untested") and "stand-in for TensorRT" in line
    board.at_rest()


def test_bench(verb: Verb, board: Board, board_bundle: Bundle, prompts: Path) -> None:
    verb("build", board_bundle.path, "--target", "tensorrt", "--states", "*-c512")
    board.restart()
    done = verb(
        *("bench", board_bundle.path, "--engine", "tensorrt", "--prompts", prompts, "--json"),
        *("--policy", "ar", "--policy", "speculative", "--repeat", 1, "--max-new-tokens", 12),
    )
    assert done.code == 0 and done.json["engine"] == "tensorrt" and done.json["ok"] is True
    board.at_rest()
