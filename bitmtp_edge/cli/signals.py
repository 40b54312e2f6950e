"""Signals as the interrupt that long verbs clean up after."""

from __future__ import annotations

import signal

from ..power.signals import interrupt


def terminate_as_interrupt() -> None:
    """From now on SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does. One that was ignored
    stays so (nohup)."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
