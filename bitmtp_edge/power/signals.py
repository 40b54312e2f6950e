"""Signals that ask a process to end, heard when it suits what is being done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def interrupt(number: int, frame: FrameType | None) -> None:
    """The handler that makes a signal Ctrl-C."""
    raise KeyboardInterrupt


@contextmanager
def on_signals(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers,
) -> Iterator[None]:
    """``handler`` hears the signals that ask a process to end, where this is the main thread.
    One that was ignored stays so (nohup)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number, old in before.items():
            if old is not signal.SIG_IGN:
                signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def deferred() -> Iterator[None]:
    """Raises KeyboardInterrupt at the end of the block for a signal that came within it."""
    came: list[int] = []
    with on_signals(lambda number, frame: came.append(number)):
        yield
    if came:
        raise KeyboardInterrupt
