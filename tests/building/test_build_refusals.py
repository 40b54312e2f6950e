"""What ``build`` refuses before it makes anything, or where TensorRT does: one line that tells."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines import tensorrt_library, tensorrt_probe
from bitmtp_edge.engines.tensorrt_manifest import (
    plan_folder,
)

from ..fakes.board import Board
from .builds import build, names_of, refused


def test_too_little_memory(board: Board, board_bundle: Bundle) -> None:
    board.gpu.total = 2 << 20
    told = refused(board_bundle)
    assert "MiB are free on Fake Orin: close what else uses memory, leave long segments" in told
    assert "with these 36 replay states takes about" in told and "for a context of 1024)" in told
    assert board.trt.built == [] and not plan_folder(board_bundle).exists()
    board.at_rest()


def test_memory_that_the_processor_shares(board: Board, board_bundle: Bundle) -> None:
    """The system gives up its file caches, which the GPU's own count calls taken."""
    board.gpu.total, board.driver.integrated = 2 << 20, True
    board.available = 1 << 20
    assert "MiB are free on Fake Orin" in refused(board_bundle)
    board.restart()
    board.available = 4 << 30
    assert build(board_bundle, "verify-m1-*-c512").built == 1


@pytest.mark.parametrize(
    ("step", "told", "message"),
    [
        (
            "parse",
            "layers.0.qkv: no importer|: shapes differ",
            "TensorRT does not parse the network of verify-m1-h1-c512: layers.0.qkv: no importer; "
            "the model: shapes differ",
        ),
        ("build", "no tactic\n fits", "does not build the network of verify-m1-h1-c512: no tactic"),
        ("deserialise", "bad magic", "does not take the engine (bad magic): verify-m1-h1-c512"),
    ],
)
def test_tensorrt_refuses(
    board: Board, board_bundle: Bundle, step: str, told: str, message: str
) -> None:
    board.trt.refusal[step] = told
    assert message in refused(board_bundle, "verify-m1-h1-c512")
    assert names_of(board_bundle) == set()
    board.at_rest()


def test_a_parser_that_says_nothing(
    board: Board, board_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fakes.fake_tensorrt.OnnxParser.num_errors", 0, raising=True)
    board.trt.refusal["parse"] = "never seen"
    assert "it does not say why" in refused(board_bundle, "verify-m1-h1-c512")


def test_without_onnx(board: Board, board_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "onnx is not installed: install the extra 'jetson'" in refused(board_bundle)


def test_without_plugins(
    board_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tensorrt_probe, "driver_devices", lambda: 1)
    monkeypatch.setenv(tensorrt_library.PATH_VARIABLE, str(tmp_path / "none.so"))
    tensorrt_library._library.cache_clear()
    told = refused(board_bundle)
    assert told.startswith("the TensorRT plugin library does not load (")
    assert told.endswith("build it with  pip install . -C cmake.define.BITMTP_TENSORRT=ON")


def test_plugins_that_tensorrt_does_not_load(board: Board, board_bundle: Bundle) -> None:
    board.trt.library = Path("another.so")
    told = refused(board_bundle)
    assert told == f"TensorRT does not load {board.library}: TensorRT does not say why"


def test_plugins_without_an_operator(board: Board, board_bundle: Bundle) -> None:
    board.trt.operators = ("TokenEmbedding",)
    told = f"{board.library} has no plugin 'RmsNormQuant': build it again, or update this SDK"
    assert refused(board_bundle) == told


@pytest.mark.parametrize("version", ["8.6.1", "10.2.0", "12.0.1", "unknown"])
def test_another_tensorrt(board: Board, board_bundle: Bundle, version: str) -> None:
    board.trt.version = version
    board.restart()
    told = f"TensorRT {version} is installed, expected 10.3 to 11"
    assert refused(board_bundle) == told
    board.at_rest()


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("tensorrt", "TensorRT's Python package does not load (.*): it comes with JetPack"),
        ("pycuda.driver", "pycuda is not installed: install the extra 'jetson'"),
    ],
)
def test_without_a_package(
    board: Board, board_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, module: str, told: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    found = refused(board_bundle)
    start, _, end = told.partition("(.*)")
    assert found.startswith(start) and end in found


def test_off_a_gpu_that_is_the_first_reason(
    board_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `doctor` and `run` have it: without a GPU no library is worth compiling."""
    monkeypatch.setattr(tensorrt_probe, "driver_devices", lambda: 0)
    assert refused(board_bundle) == tensorrt_probe.unavailable()
    assert refused(board_bundle).startswith("no CUDA device: ")


def test_without_a_device(board: Board, board_bundle: Bundle) -> None:
    board.driver.devices = 0
    told = refused(board_bundle)
    assert told.startswith("the CUDA device does not start: cuInit failed: no CUDA-capable device")
