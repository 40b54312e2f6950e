"""A tool that floods, hangs or does not listen."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.power.child import LineProcess
from bitmtp_edge.power.source import SourceError
from bitmtp_edge.power.tool import MOST_BYTES, run_tool

from . import trees


def tool(folder: Path, source: str, within_s: float = 60.0) -> tuple[int, str]:
    return run_tool([str(trees.script(folder / "tool", source))], "tool -q", within_s, "no\n")


def test_what_it_says_and_hears(tmp_path: Path) -> None:
    source = "import sys; print(input(), flush=True); sys.stderr.write('err'); sys.exit(3)"
    assert tool(tmp_path, source) == (3, "no\nerr")
    assert tool(tmp_path, "import os; os.close(0); print('deaf')") == (0, "deaf\n")
    assert len(tool(tmp_path, f"print('x' * {MOST_BYTES - 1})")[1]) == MOST_BYTES


def test_one_that_floods(tmp_path: Path) -> None:
    """It is ended at once: it would never end by itself."""
    with pytest.raises(UserError, match=r"^tool -q printed more than 64 KiB: it was stopped$"):
        tool(tmp_path, "while True: print('NV Power Mode: 15W' * 1000)")


@pytest.mark.parametrize(
    "source",
    [
        "import time; time.sleep(600)",
        "import os, time; os.close(1); os.close(2); time.sleep(600)",
        "import os, time\nif os.fork(): os._exit(0)\ntime.sleep(2)",
        "import time\nwhile True: print('.', flush=True); time.sleep(0.01)",
    ],
)
def test_one_that_does_not_end(source: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^tool -q did not end within 0\.3 s: it was stopped$"):
        tool(tmp_path, source, within_s=0.3)


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^tool -q cannot be run: .*No such file"):
        run_tool([str(tmp_path / "nowhere")], "tool -q", 1.0, "")


def test_a_line_process_that_floods(tmp_path: Path) -> None:
    flood = trees.script(tmp_path / "flood", "while True: print('VDD_IN 4046mW/4236mW')")
    lines = LineProcess([str(flood)])
    while not lines._ended:
        time.sleep(0.01)
    with pytest.raises(SourceError, match=r"^it prints over 256 KiB a second$"):
        lines.newest(1.0, 60.0)
    lines.close()
