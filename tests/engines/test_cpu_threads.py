"""The CPU engine where Python has threads and processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.engines.cpu_library import Pool
from bitmtp_edge.session import Session

from .steps import play, step

TOKENS = list(range(3, 103))


def _reply(session: Session) -> list[int]:
    return session.reply(session.decoder(), TOKENS[:20], 40).token_ids


def test_two_sessions_in_two_threads(tiny_bundle: Bundle) -> None:
    with Session.open(tiny_bundle.path) as one, Session.open(tiny_bundle.path) as other:
        expected = _reply(one)
        found: list[list[int]] = []
        threads = [
            threading.Thread(target=lambda s=each: found.extend(_reply(s) for _ in range(5)))
            for each in (one, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [expected] * 10


def test_calls_from_several_threads_take_turns(tiny_bundle: Bundle) -> None:
    """Inputs that change under a running step would send its kernels out of their memory."""
    with CpuEngine(tiny_bundle, threads=2) as engine:
        play(engine, TOKENS)
        expected = {n: step(engine, TOKENS[: n + 1], n).token_ids.tolist() for n in (1, 50, 99)}
        wrong: list[int] = []

        def work(n: int) -> None:
            for _ in range(100):
                if step(engine, TOKENS[: n + 1], n).token_ids.tolist() != expected[n]:
                    wrong.append(n)

        threads = [threading.Thread(target=work, args=(n,)) for n in expected]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_forked_child_is_told_to_open_its_own(tiny_bundle: Bundle, tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from bitmtp_edge.errors import UserError\n"
        "from bitmtp_edge.session import Session\n"
        "def reply(session): return session.reply(session.decoder(), [5, 6], 4).token_ids\n"
        "session = Session.open(sys.argv[1])\n"
        "expected = reply(session)\n"
        "if os.fork() == 0:\n"
        "    try: reply(session)\n"
        "    except UserError as error: print(error, flush=True)\n"
        "    del session\n"
        "    assert reply(Session.open(sys.argv[1])) == expected\n"
        "else:\n"
        "    assert os.wait()[1] == 0 and reply(session) == expected\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tiny_bundle.path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("this engine was opened before the process forked")


def test_pools_leave_no_thread_behind() -> None:
    def tasks() -> int:
        return len(os.listdir("/proc/self/task"))

    before = tasks()
    for _ in range(50):
        with Pool(8):
            pass
    assert tasks() == before
