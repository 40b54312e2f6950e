"""Signals as the interrupt that long verbs clean up after."""

from __future__ import annotations

import signal
from types import FrameType


def terminate_as_interrupt() -> None:
    """From now on SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
