"""Tells the seed of a run's random draws where a test failed."""

from __future__ import annotations

import pytest

from .harness import SEED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus:
        terminalreporter.write_line(f"tests/operators: repeat with BITMTP_TEST_SEED={SEED}")
