"""A tiny bundle for the verbs, and ways to run them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.cli import main
from bitmtp_edge.power import metering
from bitmtp_edge.profiling import runner, sampling

from ..export.tiny_models import write_folder
from ..power import trees
from ..power.fake_metering import FakeMetering
from ..power.nvpmodel_stub import Board, board

BLOCKS = ("--policy", "ar", "--policy", "speculative", "--policy", "hybrid")
SHORT = ("--repeat", 1, "--max-new-tokens", 24)
PROFILED = ("--policy", "ar", "--policy", "speculative")
QUICK = ("--max-rounds", 3, "--max-new-tokens", 12, "--min-seconds", 0)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of random weights with a chat template and a context of 256 tokens. Read-only."""
    from bitmtp_edge.export.pipeline import export_bundle

    folder = tmp_path_factory.mktemp("tiny")
    source = write_folder(folder / "checkpoint", max_position_embeddings=256)
    export_bundle(source.path, folder / "bundle")
    return folder / "bundle"


@pytest.fixture(autouse=True)
def no_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """No verb finds a power sensor by itself, so that tests say the same on every machine."""
    for order in ("METER_ORDER_GPU", "METER_ORDER_CPU"):
        monkeypatch.setattr(metering, order, ())


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> FakeMetering:
    """Every session's meter, whose figures are known."""
    fake = FakeMetering()
    monkeypatch.setattr(metering.Metering, "open", lambda *rest, **more: fake)
    return fake


@dataclass(frozen=True)
class Done:
    """What a verb did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.out)
        return value

    def refused(self) -> str:
        """The one line of a refusal; fails if it was none."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.startswith("bitmtp-edge: error: ")
        assert self.err.count("\n") == 1
        return self.err


Verb = Callable[..., Done]


@pytest.fixture
def verb(capsys: pytest.CaptureFixture[str]) -> Verb:
    """Runs `bitmtp-edge` in this process."""

    def run(*arguments: object) -> Done:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file of two prompts for bench."""
    path = tmp_path / "prompts.txt"
    path.write_text("the hat\n\nan inn\n")
    return path


@pytest.fixture
def block_bundle(
    tiny_ternary_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A bundle with mask embeddings, to which costs may be written."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(tiny_ternary_bundle.path, tmp_path / "blocks")
    return tmp_path / "blocks"


@pytest.fixture
def nx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    """A board in mode 15W, warm, whose nvpmodel is found."""
    here = board(tmp_path / "nx")
    trees.write(here.root / "sys/class/thermal/thermal_zone0/type", "gpu-thermal")
    trees.write(here.root / "sys/class/thermal/thermal_zone0/temp", 51250)
    monkeypatch.setenv("PATH", f"{here.bin}:{os.environ['PATH']}")
    return here


@pytest.fixture
def profile(
    verb: Verb,
    block_bundle: Path,
    prompts: Path,
    nx: Board,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Verb:
    """Runs `profile` on the board, without waits, writing to out.json, out.csv and out.html."""
    monkeypatch.setattr(sampling, "WARM_UP_S", 0.0)
    monkeypatch.setattr(runner, "step_spread", lambda engine, states: 1.0)
    files = [f"--{kind}={tmp_path / 'out'}.{kind}" for kind in ("json", "csv", "html")]

    def run(*options: object) -> Done:
        given = ("--prompts", prompts, "--root", nx.root, *PROFILED, *QUICK, *files)
        return verb("profile", block_bundle, *given, *options)

    return run
