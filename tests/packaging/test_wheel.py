"""The wheel as a user gets it: what is in it, and that it runs outside this checkout.

A test of a verb on an installed wheel takes the fixture `installed`, whose `run` starts the command
in a folder that is not the checkout.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import bitmtp_edge
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.session import Session

ROOT = Path(__file__).parents[2]
CURRENT = f"{sys.version_info.major}.{sys.version_info.minor}"
OFFLINE = "Could not find a version that satisfies the requirement"


@dataclass(frozen=True)
class Installed:
    """A virtual environment that holds the wheel, and an empty folder to run it from."""

    scripts: Path
    folder: Path

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run `bitmtp-edge` with these arguments, with the checkout out of reach."""
        command = [str(self.scripts / "bitmtp-edge"), *map(str, arguments)]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True)


def find_python(version: str) -> str | None:
    """An interpreter of this version that works: a version manager's shim may exist and not."""
    if version == CURRENT:
        return sys.executable
    managed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in [shutil.which(f"python{version}"), *map(str, managed)]:
        if (
            candidate
            and subprocess.run(
                [candidate, "-c", "import ensurepip, venv"], capture_output=True
            ).returncode
            == 0
        ):
            return candidate
    return None


def run_pip(python: str | Path, arguments: Sequence[str | Path]) -> None:
    """Run pip; skip the test when the package index is out of reach, fail it on any other error."""
    command = [str(python), "-m", "pip", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    output = done.stdout + done.stderr
    if OFFLINE in output:
        pytest.skip("the package index is out of reach")
    assert done.returncode == 0, output


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run_pip(sys.executable, ["wheel", ".", "--no-deps", "--wheel-dir", folder])
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session", params=sorted({"3.10", "3.13", CURRENT}))
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    python = find_python(request.param)
    if python is None:
        pytest.skip(f"no Python {request.param} here")
    folder = tmp_path_factory.mktemp(f"python{request.param}")
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    scripts = folder / "venv" / "bin"
    run_pip(scripts / "python", ["install", "--no-compile", wheel])
    away = folder / "elsewhere"
    away.mkdir()
    return Installed(scripts, away)


def test_one_wheel_serves_every_python(wheel: Path) -> None:
    assert wheel.name.startswith(f"bitmtp_edge-{bitmtp_edge.__version__}-py3-none-linux_")


def test_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    listed = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"{prefix}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, prefix in {
            "bitmtp_edge": "bitmtp_edge",
            "export": "bitmtp_edge/export",
            "profiles": "bitmtp_edge/profiles",
        }.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".toml", ".html", ".css", ".js"}
    }
    assert expected <= listed
    assert any(name.startswith("bitmtp_edge/export/") for name in listed)
    assert any(name.startswith("bitmtp_edge/profiles/") for name in listed)
    assert any(name.startswith("bitmtp_edge/_lib/libbitmtp_cpu") for name in listed)
    assert {name.partition("/")[0] for name in listed} == {
        "bitmtp_edge",
        f"bitmtp_edge-{bitmtp_edge.__version__}.dist-info",
    }


def test_version_of_the_installed_wheel(installed: Installed) -> None:
    done = installed.run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"bitmtp-edge, version {bitmtp_edge.__version__}\n"


def test_help_of_the_installed_wheel(installed: Installed) -> None:
    done = installed.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: bitmtp-edge ")


def test_the_installed_wheel_inspects_a_bundle(installed: Installed, tiny_bundle: Bundle) -> None:
    done = installed.run("inspect", tiny_bundle.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].split() == ["model", "llama", "(llama)"]


def test_the_installed_wheel_answers_as_the_checkout_does(
    installed: Installed, tiny_bundle: Bundle
) -> None:
    done = installed.run(
        "run", tiny_bundle.path, "--prompt", "the hat", "--max-new-tokens", "16", "--json"
    )
    assert (done.returncode, done.stderr) == (0, "")
    with Session.open(tiny_bundle.path) as session:
        ids = session.prompt_ids("the hat")
        expected = session.reply(session.decoder(), ids, 16)
    found = json.loads(done.stdout)
    assert found["token_ids"] == expected.token_ids and found["text"] == expected.text
