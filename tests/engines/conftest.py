"""The CUDA engine over a tiny bundle, once on host memory and once, marked ``gpu``, on a GPU.

On the host its kernels are the CPU engine's, so that all else, the engine's own part, must give the
CPU engine's bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.cuda import CudaEngine

from .cuda_steps import Open, on_host


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def opened(request: pytest.FixtureRequest) -> Open:
    return on_host if request.param == "host" else CudaEngine


@pytest.fixture(params=["tiny_bundle", "fp16_bundle", "tiny_ternary_bundle"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    found: Bundle = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def engine(tiny_bundle: Bundle, opened: Open) -> Iterator[CudaEngine]:
    with opened(tiny_bundle) as engine:
        yield engine
