"""tools/setup.sh on machines that lack something: one line that says what, and nothing made."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "tools" / "setup.sh"
WITHOUT_VENV = 'case "$*" in *ensurepip*) exit 1;; *platform*) echo 3.11.2;; esac'
TOO_OLD = 'case "$*" in *platform*) echo 3.8.1;; *) exit 1;; esac'
SHIM = "echo 'python3: command not found' >&2; exit 127"


@pytest.mark.parametrize(
    ("python", "compiler", "named", "told"),
    [
        ("exit 0", False, None, "missing tools; run: sudo apt-get install -y g++"),
        (None, True, None, "missing tools; run: sudo apt-get install -y python3 python3-venv"),
        (SHIM, False, None, "missing tools; run: sudo apt-get install -y g++ python3 python3-venv"),
        (WITHOUT_VENV, True, None, "sudo apt-get install -y python3 python3-venv"),
        (TOO_OLD, True, None, "needs Python 3.10 or newer; python3 is 3.8.1"),
        (SHIM, True, "python3", "PYTHON=python3 is no Python that runs here"),
        ("exit 0", True, "python3.99", "PYTHON=python3.99 is no Python that runs here"),
    ],
)
def test_what_is_missing_is_told(
    python: str | None, compiler: bool, named: str | None, told: str, tmp_path: Path
) -> None:
    commands, checkout = tmp_path / "bin", tmp_path / "check out"
    commands.mkdir()
    for command in ("bash", "dirname"):
        found = shutil.which(command)
        assert found
        (commands / command).symlink_to(found)
    for name, body in (("python3", python), ("c++", "exit 0" if compiler else None)):
        if body is not None:
            (commands / name).write_text(f"#!{commands / 'bash'}\n{body}\n")
            (commands / name).chmod(0o755)
    (checkout / "tools").mkdir(parents=True)
    shutil.copy(SETUP, checkout / "tools")
    done = subprocess.run(
        [commands / "bash", checkout / "tools" / "setup.sh", "dev"],
        capture_output=True,
        text=True,
        env={"PATH": str(commands), "PYTHON": named or ""},
    )
    assert done.returncode == 2
    assert told in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in checkout.iterdir()] == ["tools"]
