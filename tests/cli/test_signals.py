"""Signals of verbs that clean up after themselves."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from bitmtp_edge.cli.signals import terminate_as_interrupt


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, old in before.items():
        signal.signal(number, old)


def test_a_signal_is_an_interrupt() -> None:
    terminate_as_interrupt()
    for number in (signal.SIGTERM, signal.SIGHUP):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_what_was_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    terminate_as_interrupt()
    signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
