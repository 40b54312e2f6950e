"""A tiny bundle for the verbs, and ways to run them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.cli import main

from ..export.tiny_models import write_folder


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of random weights with a chat template and a context of 256 tokens. Read-only."""
    from bitmtp_edge.export.pipeline import export_bundle

    folder = tmp_path_factory.mktemp("tiny")
    source = write_folder(folder / "checkpoint", max_position_embeddings=256)
    export_bundle(source.path, folder / "bundle")
    return folder / "bundle"


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


@pytest.fixture
def verb(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs `bitmtp-edge` in this process."""

    def run(*arguments: object) -> Done:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run
