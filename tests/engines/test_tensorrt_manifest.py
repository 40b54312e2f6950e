"""No plan is deserialised unless its manifest says that it fits: the message names what does not,
what was found, what was expected, and the command that mends it."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from bitmtp_edge.building.plans import build_plans
from bitmtp_edge.building.states import chosen_states
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import NotBuilt
from bitmtp_edge.engines.pycuda_device import PycudaDevice
from bitmtp_edge.engines.registry import open_engine
from bitmtp_edge.engines.tensorrt import TensorRTEngine
from bitmtp_edge.engines.tensorrt_api import started
from bitmtp_edge.engines.tensorrt_manifest import (
    build_command,
    named_state,
    plan_folder,
    rebuild_command,
)
from bitmtp_edge.engines.tensorrt_plans import deserialised
from bitmtp_edge.engines.tensorrt_tensors import engine_tensors
from bitmtp_edge.errors import UserError

from ..building.test_build_plans import Change, each_change
from ..fakes.board import Board
from .cuda_steps import TOKENS
from .steps import step

NAME = "verify-m1-h1-c512"


@pytest.fixture
def built(board: Board, board_bundle: Bundle) -> Bundle:
    build_plans(board_bundle, chosen_states(board_bundle, ["verify-m1-*"]), lambda line: None)
    board.restart()
    board.trt.deserialised = board.gpu.taken = 0
    return board_bundle


def refused(bundle: Bundle, board: Board) -> str:
    """What is said instead of a step; nothing was deserialised."""
    with pytest.raises(UserError) as caught, TensorRTEngine(bundle) as engine:
        step(engine, TOKENS[:1], 0, logits=False)
    assert board.trt.deserialised == 0
    board.at_rest()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@each_change
def test_each_field(
    built: Bundle, board: Board, monkeypatch: pytest.MonkeyPatch, change: Change, why: str
) -> None:
    change(board, built, monkeypatch)
    board.restart()
    with pytest.raises(NotBuilt) as caught:
        TensorRTEngine(built)
    command = f"build again with  bitmtp-edge build {built.path} --target tensorrt"
    folder = plan_folder(built)
    told = str(caught.value)
    assert told.startswith(f"the engines in {folder} do not fit: ") and told.endswith(command)
    assert board.gpu.taken == 0  # refused before any memory was
    assert re.search(why, told)
    assert board.trt.deserialised == 0
    board.at_rest()


def test_several_fields_at_once(
    built: Bundle, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.trt.version, board.l4t = "10.16.2.10", "39.2.0"
    board.restart()
    told = refused(built, board)
    assert "TensorRT was 10.3.0.30" in told and "L4T was 36.4.3" in told


@pytest.mark.parametrize(
    "damage", ["shorter", "longer", "other", "missing", "a plan of another state"]
)
def test_a_plan_that_is_not_the_one_that_was_built(
    built: Bundle, board: Board, damage: str
) -> None:
    path = plan_folder(built) / f"{NAME}.plan"
    plan = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "a plan of another state":
        other = plan_folder(built) / "verify-m1-h1-c1024.plan"
        os.replace(other, path)
    else:
        edits = {"shorter": plan[:-1], "longer": plan + b"!", "other": plan[:-1] + b"!"}
        path.write_bytes(edits[damage])
    told = refused(built, board)
    assert told.startswith(str(path))
    assert told.endswith(
        f"build it with  bitmtp-edge build {built.path} --target tensorrt --states {NAME}"
    )
    expected = {
        "shorter": f"{len(plan) - 1} bytes, the manifest says {len(plan)}",
        "longer": f"{len(plan) + 1} bytes, the manifest says {len(plan)}",
        "other": "its SHA-256 is ",
        "missing": "is missing",
        "a plan of another state": "the manifest says",
    }
    assert expected[damage] in told


def test_no_engines(board: Board, board_bundle: Bundle) -> None:
    told = refused(board_bundle, board)
    assert told == (
        f"{board_bundle.path} has no engines for TensorRT: build them on this machine with  "
        f"bitmtp-edge build {board_bundle.path} --target tensorrt"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is damaged"),
        ('{"schema": 9}', "schema is 9, expected 1"),
        ('{"schema": 1, "engines": {}}', "field 'built_for' is missing"),
    ],
)
def test_a_damaged_manifest(built: Bundle, board: Board, text: str, why: str) -> None:
    (plan_folder(built) / "manifest.json").write_text(text)
    told = refused(built, board)
    assert why in told
    assert told.endswith(f"build again with  bitmtp-edge build {built.path} --target tensorrt")


@pytest.mark.parametrize("name", ["../../verify-m1-h1-c512", "verify-m1"])
def test_a_manifest_with_a_name_that_is_none(built: Bundle, board: Board, name: str) -> None:
    path = plan_folder(built) / "manifest.json"
    value = json.loads(path.read_text())
    value["engines"][name] = value["engines"][NAME]
    path.write_text(json.dumps(value))
    assert f"{name!r} is no replay state" in refused(built, board)


@pytest.mark.parametrize("name", ["manifest.json", f"{NAME}.plan"])
@pytest.mark.parametrize("kind", ["a link", "no file"])
def test_files_that_are_none(
    built: Bundle, board: Board, tmp_path: Path, name: str, kind: str
) -> None:
    path = plan_folder(built) / name
    path.rename(tmp_path / name)
    if kind == "a link":
        path.symlink_to(tmp_path / name)
    else:
        os.mkfifo(path)
    told = refused(built, board)
    assert told.startswith(f"{path} is {kind}, expected a file of the bundle's own: remove it: ")
    assert f"bitmtp-edge build {built.path} --target tensorrt" in told


def test_commands_can_be_pasted(built: Bundle) -> None:
    bundle = Bundle.open(built.path.rename(built.path.with_name("b ü $x")))
    state = named_state(NAME)
    assert state is not None
    folder = f"{built.path.parent}/b ü $x"
    build = ["bitmtp-edge", "build", folder, "--target", "tensorrt"]
    assert shlex.split(build_command(bundle)) == build
    assert shlex.split(rebuild_command(bundle, state)) == [
        *("rm", f"{folder}/engines/tensorrt/{NAME}.plan", "&&", *build, "--states", NAME)
    ]


def test_a_long_field_leaves_room_for_the_command(built: Bundle, board: Board) -> None:
    path = plan_folder(built) / "manifest.json"
    value = json.loads(path.read_text())
    value["built_for"]["sdk"] = "\x1b[2J\n" + "9" * 5000
    path.write_text(json.dumps(value))
    told = refused(built, board)
    assert "bitmtp-edge was \\x1b[2J 999" in told and len(told) < 1000
    assert told.endswith(f"build again with  bitmtp-edge build {built.path} --target tensorrt")


def test_too_little_scratch(built: Bundle, board: Board) -> None:
    path = plan_folder(built) / "manifest.json"
    value = json.loads(path.read_text())
    for entry in value["engines"].values():
        entry["scratch"] = 1000
    path.write_text(json.dumps(value))
    with pytest.raises(UserError) as caught, TensorRTEngine(built) as engine:
        step(engine, TOKENS[:1], 0, logits=False)
    assert "bytes of scratch memory, the manifest says 1000 at most" in str(caught.value)
    board.at_rest()


def test_an_engine_with_other_tensors(built: Bundle, board: Board) -> None:
    """As of a bundle.json that was changed together with the manifest."""
    states = {state.width: state for state in ReplayStates.of(built).all()}
    plan = (plan_folder(built) / f"{NAME}.plan").read_bytes()
    device = PycudaDevice()
    with (
        TensorRTEngine(built, device=device),
        device.current(),
        pytest.raises(UserError) as caught,
    ):
        deserialised(started("Runtime"), plan, engine_tensors(built, states[5]), "that file")
    told = "input 'token_ids' is int32[1], expected int32[5]: that file"
    assert str(caught.value) == f"the engine has other tensors: {told}"
    device.close()


def test_auto_passes_over_engines_that_do_not_fit(built: Bundle, board: Board) -> None:
    told: list[str] = []
    with open_engine("auto", built, notice=told.append) as engine:
        assert engine.name == "tensorrt" and told == []
    board.trt.version = "10.7.0.23"
    board.restart()
    with open_engine("auto", built, notice=told.append) as engine:
        assert engine.name == "cpu"
    first, second = told  # of tensorrt, and of cuda, which the stand-in for a GPU has none of
    assert first.startswith("engine tensorrt is not used: the engines in ")
    assert "TensorRT was 10.3.0.30 when they were built, and is 10.7.0.23 here" in first
    assert second == "engine cuda is not used: no CUDA device"
    with pytest.raises(NotBuilt, match="do not fit"):
        open_engine("tensorrt", built)
