"""A child process that prints readings, line by line, and what of it to believe."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ..errors import describe_os_error
from .source import SourceError

_LONGEST_LINE = 1 << 16
_MOST_A_SECOND = 1 << 18  # bytes; tegrastats prints some thousand


class LineProcess:
    """Keeps the newest line that ``argv`` printed, and when it came (``time.monotonic``).

    The child has its own session, so that Ctrl-C at the terminal is for us alone, and a pipe as its
    stdin, which closes when we go, however we go.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise SourceError(describe_os_error(error)) from None
        self._news = threading.Condition()
        self._newest: tuple[float, str] | None = None
        self._ended = False
        self._flooded = False
        threading.Thread(target=self._listen, name="power lines", daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        began, told = time.monotonic(), 0
        with self._process.stdout as lines:
            while line := lines.readline(_LONGEST_LINE):
                at = time.monotonic()
                if at > began + 1:
                    began, told = at, 0
                told += len(line)
                if told > _MOST_A_SECOND:  # reading on would take a processor
                    self._flooded = True
                    break
                with self._news:
                    self._newest = at, line.decode(errors="replace")
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def newest(self, first_within_s: float, silent_s: float) -> tuple[float, str]:
        """The newest line, the first of which may take ``first_within_s`` to come.

        SourceError where none came, the last came over ``silent_s`` ago, or the child has ended
        without a word.
        """
        with self._news:
            self._news.wait_for(lambda: self._newest is not None or self._ended, first_within_s)
            if self._newest is None and not self._ended:
                raise SourceError(f"no answer within {first_within_s:g} s")
            if self._flooded:
                raise SourceError(f"it prints over {_MOST_A_SECOND >> 10} KiB a second")
            if self._newest is None:
                raise SourceError("it ended without an answer")
            at, line = self._newest
            ended = self._ended
        silent = time.monotonic() - at
        if silent > silent_s:
            what = "it has ended" if ended else "it hangs"
            raise SourceError(f"no answer for {silent:.1f} s: {what}")
        return at, line

    def close(self) -> None:
        """Ends the child, and what it has started. It only reads, so there is nothing to tidy."""
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
