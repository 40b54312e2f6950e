"""Which library an operator's kernel is of, and the seed of random draws where a test failed."""

from __future__ import annotations

import os

import pytest

from ..tensorrt.conftest import LIBRARY
from . import harness
from .harness import SEED

ON_GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in ("cuda", "tensorrt")]


@pytest.fixture(params=["cpu", *ON_GPU])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernels of each library by turns."""
    if request.param == "tensorrt" and LIBRARY not in os.environ:
        pytest.skip(f"{LIBRARY} is not set")
    monkeypatch.setattr(harness, "library", request.param)
    return str(request.param)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus:
        terminalreporter.write_line(f"tests/operators: repeat with BITMTP_TEST_SEED={SEED}")
