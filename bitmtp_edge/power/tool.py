"""A run of a tool that can neither hang us nor fill our memory."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from ..errors import UserError, describe_os_error

MOST_BYTES = 1 << 16  # what these tools print is a page or two


def run_tool(argv: Sequence[str], shown: str, within_s: float, answer: str) -> tuple[int, str]:
    """The exit code of ``argv``, which reads ``answer``, and what it printed on both streams.

    shown: its name in errors. UserError where it cannot be started, is not done within
    ``within_s``, or prints more than ``MOST_BYTES``; in these two cases it is ended.
    """
    deadline = time.monotonic() + within_s
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C must not stop it half-way
        )
    except OSError as error:
        raise UserError(f"{shown} cannot be run: {describe_os_error(error)}") from None
    assert process.stdin is not None and process.stdout is not None
    try:
        with suppress(OSError):  # it may not care for an answer
            os.write(process.stdin.fileno(), answer.encode())
            process.stdin.close()
        output = _read(process.stdout.fileno(), deadline, shown)
        process.wait(max(0.0, deadline - time.monotonic()))
    except (TimeoutError, subprocess.TimeoutExpired):
        raise UserError(f"{shown} did not end within {within_s:g} s: it was stopped") from None
    finally:
        if process.poll() is None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe.close()
    return process.returncode, output.decode(errors="replace")


def _read(pipe: int, deadline: float, shown: str) -> bytes:
    """All that comes through ``pipe`` until it is closed. TimeoutError behind the deadline."""
    found = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            part = os.read(pipe, MOST_BYTES)
            if not part:
                return bytes(found)
            found += part
            if len(found) > MOST_BYTES:
                raise UserError(f"{shown} printed more than {MOST_BYTES >> 10} KiB: it was stopped")
