"""``build`` against a stand-in for TensorRT: which engines, made how, kept how, refused how."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bitmtp_edge
from bitmtp_edge.building import plans
from bitmtp_edge.building.states import chosen_states
from bitmtp_edge.bundle import Bundle, sha256_of
from bitmtp_edge.engines import tensorrt_manifest
from bitmtp_edge.engines.base import ReplayState
from bitmtp_edge.engines.tensorrt import TensorRTEngine
from bitmtp_edge.engines.tensorrt_manifest import (
    build_command,
    plan_folder,
    read_manifest,
    state_name,
)
from bitmtp_edge.engines.tensorrt_tensors import engine_tensors
from bitmtp_edge.errors import UserError

from ..engines.cuda_steps import TOKENS
from ..engines.steps import step
from ..fakes.board import Board
from .builds import build, names_of, refused

FIRST = ("*-c512",)  # the states of greedy decoding in the first segment


@pytest.mark.parametrize("version", ["10.3.0.30", "10.16.2.10", "11.1.0.106"])
def test_every_state(board: Board, board_bundle: Bundle, version: str) -> None:
    board.trt.version = version
    board.restart()
    states = chosen_states(board_bundle)
    report = build(board_bundle)
    assert report.built == len(states) == len(board.trt.built)
    assert report.engines == tuple(map(state_name, states))
    for state, built in zip(states, board.trt.built, strict=True):
        tensors = engine_tensors(board_bundle, state)
        assert tensors.differences(built.inputs, built.outputs) == []
        assert built.strongly_typed and built.aux_streams == 0
        assert built.workspace == 256 << 20
        assert built.network_bytes < 16384
    board.at_rest()


def test_what_is_kept(board: Board, board_bundle: Bundle) -> None:
    report = build(board_bundle, *FIRST)
    folder = plan_folder(board_bundle)
    manifest = read_manifest(board_bundle)
    assert manifest is not None
    assert manifest.engines.keys() == set(report.engines) == names_of(board_bundle)
    assert json.loads((folder / "manifest.json").read_text())["built_for"] == {
        "sdk": bitmtp_edge.__version__,
        "tensorrt": "10.3.0.30",
        "sm": "8.7",
        "l4t": "36.4.3",
        "plugin": sha256_of(board.library),
        "bundle": sha256_of(board_bundle.path / "bundle.json"),
    }
    sizes = {path.stem: path.stat().st_size for path in folder.glob("*.plan")}
    assert {name: entry.bytes for name, entry in manifest.engines.items()} == sizes
    assert min(entry.scratch for entry in manifest.engines.values()) > 0
    assert report.engine_bytes == sum(sizes.values())
    assert report.weight_bytes == board_bundle.manifest.files["weights.bin"].bytes
    others = {path.name for path in folder.iterdir()} - {f"{name}.plan" for name in sizes}
    assert others == {"manifest.json", plans.LOCK_FILE}


def test_only_what_is_missing(board: Board, board_bundle: Bundle) -> None:
    told: list[str] = []
    assert build(board_bundle, "verify-m1-*").built == 4
    board.restart()
    assert build(board_bundle, "verify-m1-*", "draft-m1-h1-c512", told=told).built == 1
    board.restart()
    assert build(board_bundle, "verify-m1-*", told=told).built == 0
    assert told == [] and len(names_of(board_bundle)) == 5


@pytest.mark.parametrize("damage", ["missing", "shorter", "other"])
def test_a_damaged_plan_is_built_again(board: Board, board_bundle: Bundle, damage: str) -> None:
    build(board_bundle, *FIRST)
    path = plan_folder(board_bundle) / "verify-m1-h1-c512.plan"
    before = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(before[:-1] if damage == "shorter" else before[:-1] + b"!")
    board.restart()
    assert build(board_bundle, *FIRST).built == 1
    assert path.read_bytes() == before


# ---- what does not fit any more -----------------------------------------------------------------


def newer_sdk(board: Board, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_manifest, "__version__", "99.0")


def newer_tensorrt(board: Board, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    board.trt.version = "10.7.0.23"


def other_gpu(board: Board, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    board.driver.capability = (8, 9)


def newer_l4t(board: Board, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    board.l4t = "36.4.4"


def no_l4t(board: Board, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    board.l4t = None


def other_plugins(board: Board, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    board.library.write_bytes(b"plugins, second build")


def other_bundle(board: Board, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bundle.path / "bundle.json"
    path.write_text(path.read_text() + "\n")


Change = Callable[[Board, Bundle, pytest.MonkeyPatch], None]
CHANGES: list[tuple[Change, str]] = [
    (newer_sdk, rf"bitmtp-edge was {bitmtp_edge.__version__} when they were built, and is 99.0"),
    (newer_tensorrt, r"TensorRT was 10.3.0.30 when they were built, and is 10.7.0.23 here"),
    (other_gpu, r"the GPU's compute capability \(SM\) was 8.7 when they .*, and is 8.9 here"),
    (newer_l4t, r"L4T was 36.4.3 when they were built, and is 36.4.4 here"),
    (no_l4t, r"L4T was 36.4.3 when they were built, and is none here"),
    (other_plugins, r"the plugin library's SHA-256 was [0-9a-f]{64} when .*, and is [0-9a-f]{64}"),
    (other_bundle, r"the SHA-256 of bundle.json was [0-9a-f]{64} when .*, and is [0-9a-f]{64}"),
]
each_change = pytest.mark.parametrize(
    ("change", "why"), CHANGES, ids=[change.__name__ for change, _ in CHANGES]
)


@each_change
def test_everything_is_built_anew(
    board: Board, board_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, change: Change, why: str
) -> None:
    """Also where only some are asked for: the others would be of no use."""
    build(board_bundle, *FIRST)
    change(board, board_bundle, monkeypatch)
    board.restart()
    told: list[str] = []
    report = build(board_bundle, "verify-m1-*-c512", told=told)
    assert report.built == 1
    assert names_of(board_bundle) == {"verify-m1-h1-c512"}
    (line,) = told
    assert re.match(f"all engines are built anew: {why}", line)
    board.restart()
    assert build(board_bundle, "verify-m1-*-c512").built == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "manifest.json is damaged"),
        ("[]", "schema is None, expected 1"),
        ('{"schema": 2}', "schema is 2, expected 1"),
        ('{"schema": 1}', "field 'built_for' is missing"),
    ],
)
def test_a_damaged_manifest(board: Board, board_bundle: Bundle, text: str, why: str) -> None:
    build(board_bundle, *FIRST)
    (plan_folder(board_bundle) / "manifest.json").write_text(text)
    board.restart()
    told: list[str] = []
    assert build(board_bundle, "verify-m1-*-c512", told=told).built == 1
    assert len(told) == 1 and why in told[0]
    assert "bitmtp-edge build" not in told[0]  # which is under way


@pytest.mark.parametrize("scratch", [10**30, -5, (1 << 36) + 1])
def test_scratch_that_no_board_has(board: Board, board_bundle: Bundle, scratch: int) -> None:
    """The command that the engine's refusal names mends the manifest."""
    build(board_bundle, "verify-m1-*-c512")
    edit_scratch(board_bundle, scratch)
    board.restart()
    told: list[str] = []
    assert build(board_bundle, "verify-m1-*-c512", told=told).built == 1
    (line,) = told
    assert line.endswith(f"scratch of verify-m1-h1-c512 is {scratch}, expected 0 to {1 << 36}")
    board.restart()
    with TensorRTEngine(board_bundle) as engine:
        step(engine, TOKENS[:1], 0, logits=False)
    board.at_rest()


@pytest.mark.parametrize("scratch", [0, 1000])
def test_too_little_scratch_is_mended_by_the_command_that_the_message_names(
    board: Board, board_bundle: Bundle, scratch: int
) -> None:
    build(board_bundle, "verify-m1-*-c512")
    edit_scratch(board_bundle, scratch)
    board.restart()
    with pytest.raises(UserError) as caught, TensorRTEngine(board_bundle) as engine:
        step(engine, TOKENS[:1], 0, logits=False)
    remove, _, again = str(caught.value).partition("it again with  ")[2].partition(" && ")
    assert again == build_command(board_bundle, [ReplayState(1, 1, 512, "verify")])
    subprocess.run(remove, shell=True, check=True)
    board.restart()
    assert build(board_bundle, "verify-m1-h1-c512").built == 1
    board.restart()
    with TensorRTEngine(board_bundle) as engine:
        step(engine, TOKENS[:1], 0, logits=False)


def edit_scratch(bundle: Bundle, scratch: int) -> None:
    path = plan_folder(bundle) / "manifest.json"
    value = json.loads(path.read_text())
    for entry in value["engines"].values():
        entry["scratch"] = scratch
    path.write_text(json.dumps(value))


# ---- what is not the bundle's own ----------------------------------------------------------------

OURS = ("manifest.json", "verify-m1-h1-c512.plan", "old.plan", "x.plan.7.partial", plans.LOCK_FILE)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("kind", ["a link", "a link to nothing", "a folder", "a pipe"])
def test_files_that_are_none(
    board: Board, board_bundle: Bundle, tmp_path: Path, name: str, kind: str
) -> None:
    """Nothing outside is written or deleted, nothing inside either, and nothing waited for."""
    build(board_bundle, "verify-m1-*-c512")
    folder = plan_folder(board_bundle)
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(outside if kind == "a link" else tmp_path / "nothing")
    before = {each: each.lstat().st_mtime_ns for each in folder.iterdir()}
    board.restart()
    found = "a link" if kind.startswith("a link") else "no file"
    told = refused(board_bundle, *FIRST)
    assert told == f"{path} is {found}, expected a file of the bundle's own: remove it"
    assert outside.read_bytes() == b"precious" and not (tmp_path / "nothing").exists()
    assert {each: each.lstat().st_mtime_ns for each in folder.iterdir()} == before
    board.at_rest()


@pytest.mark.parametrize("part", ["engines", "engines/tensorrt"])
@pytest.mark.parametrize("kind", ["a link", "no folder"])
def test_folders_that_are_none(
    board: Board, board_bundle: Bundle, tmp_path: Path, part: str, kind: str
) -> None:
    outside = tmp_path / "outside"
    (outside / "tensorrt").mkdir(parents=True)
    (outside / "tensorrt" / "precious.plan").touch()
    (outside / "precious.plan").touch()
    path = board_bundle.path / part
    path.parent.mkdir(exist_ok=True)
    if kind == "a link":
        path.symlink_to(outside)
    else:
        path.touch()
    told = refused(board_bundle, *FIRST)
    assert told == f"{path} is {kind}, expected a folder of the bundle's own: remove it"
    assert sorted(each.name for each in outside.rglob("*")) == [
        *("precious.plan", "precious.plan", "tensorrt")
    ]


# ---- interruptions ------------------------------------------------------------------------------


def test_a_killed_build_goes_on(board: Board, board_bundle: Bundle) -> None:
    """Killed as kill -9 does, in the middle of writing a plan."""
    states = chosen_states(board_bundle)

    def killed(count: int) -> None:
        if count == 3:
            partial = plan_folder(board_bundle) / f"{state_name(states[3])}.plan.77.partial"
            partial.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

    board.trt.before_build = killed
    child = os.fork()
    if child == 0:
        build(board_bundle)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert len(names_of(board_bundle)) == 3
    board.trt.before_build = lambda count: None
    assert build(board_bundle).built == len(states) - 3
    assert not list(plan_folder(board_bundle).glob("*.partial"))
    board.restart()
    assert build(board_bundle).built == 0


def test_a_plan_that_was_never_listed_is_built_again(board: Board, board_bundle: Bundle) -> None:
    """As of a build that ended between the plan and the manifest."""
    build(board_bundle, "verify-m1-*-c512")
    stray = plan_folder(board_bundle) / "verify-m2-h2-c512.plan"
    stray.write_bytes(b"whatever")
    board.restart()
    assert build(board_bundle, "verify-m2-h2-c512").built == 1
    assert stray.read_bytes() != b"whatever"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files may have ``size`` bytes: writing more fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk(board: Board, board_bundle: Bundle) -> None:
    """What was built before stays, and nothing half-written does."""
    build(board_bundle, "verify-m1-*-c512")
    board.restart()
    with largest_file(2048), pytest.raises(OSError, match="File too large"):
        build(board_bundle, *FIRST)
    assert names_of(board_bundle) == {"verify-m1-h1-c512"}
    assert not list(plan_folder(board_bundle).glob("*.partial"))
    board.at_rest()
    board.restart()
    assert build(board_bundle, "verify-m1-*-c512").built == 0


def test_one_build_at_a_time(board: Board, board_bundle: Bundle) -> None:
    with plans._alone(board_bundle):
        told = refused(board_bundle)
    assert told == f"another build is at work in {plan_folder(board_bundle)}: wait until it is done"
    assert board.trt.built == []
    build(board_bundle, "verify-m1-h1-c512")
