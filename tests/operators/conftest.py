"""Which library an operator's kernel is of, and the seed of random draws where a test failed."""

from __future__ import annotations

import pytest

from . import harness
from .harness import SEED


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernels of each library by turns."""
    monkeypatch.setattr(harness, "library", request.param)
    return str(request.param)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus:
        terminalreporter.write_line(f"tests/operators: repeat with BITMTP_TEST_SEED={SEED}")
