"""board_checks: what a Jetson lacks, and the line that mends it, on boards made of files."""

from __future__ import annotations

import grp
import importlib.metadata
import importlib.util
import os
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from bitmtp_edge import board_checks
from bitmtp_edge.board_checks import Account
from bitmtp_edge.engines import tensorrt_library
from bitmtp_edge.errors import UserError
from bitmtp_edge.findings import Finding
from bitmtp_edge.host import read_host

from .boards import JETPACK6, JETPACK7, write_board, write_file

USER = Account("ada", frozenset({"ada", "video", "render", "jtop"}), root=False)
ROOT = Account("root", frozenset({"root"}), root=True)

Board = Callable[..., dict[str, Finding]]


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """The findings of a board of JETPACK6's files with ``changes``, by subject. None removes a
    file."""

    def examine(
        changes: Mapping[str, str | None] | None = None,
        account: Account = USER,
        files: Mapping[str, str] = JETPACK6,
    ) -> dict[str, Finding]:
        merged = {**files, **(changes or {})}
        write_board(tmp_path, {name: text for name, text in merged.items() if text is not None})
        host = read_host(tmp_path)
        found = [
            *board_checks.tensorrt_checks(host),
            *board_checks.board_checks(host, tmp_path, account),
        ]
        for finding in found:
            assert finding.detail and "\n" not in finding.detail
        return {finding.subject: finding for finding in found}

    return examine


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes packages look installed, by import name and version, and all others of a board not."""

    def look(**versions: str) -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: name if name in versions else None
        )

        def version(package: str) -> str:
            name = {"jetson-stats": "jtop"}.get(package, package)
            if name not in versions:
                raise importlib.metadata.PackageNotFoundError(package)
            return versions[name]

        monkeypatch.setattr(importlib.metadata, "version", version)

    look()
    return look


def test_a_board_is_untested_and_has_a_profile(board: Board) -> None:
    found = board()["board"]
    assert found.status == "untested"
    assert "profile orin-nx-16gb" in found.detail and "nobody has run" in found.detail


def test_a_board_without_a_profile(board: Board) -> None:
    found = board({"proc/device-tree/compatible": "nvidia,p3834-0008\0nvidia,tegra264\0"})["board"]
    assert found.status == "untested" and "no profile" in found.detail


@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ("# R36 (release), REVISION: 4.3", "ok", "36.4.3 (JetPack 6.2)"),
        ("# R39 (release), REVISION: 2.0", "ok", "39.2.0 (JetPack 6.2)"),  # of nvidia-jetpack
        ("# R35 (release), REVISION: 4.1", "missing", "flash JetPack 6.2 or 7.2"),
        ("# R38 (release), REVISION: 2.0", "untested", "made for JetPack 6"),
    ],
)
def test_l4t(board: Board, line: str, status: str, told: str) -> None:
    found = board({"etc/nv_tegra_release": line})["L4T"]
    assert found.status == status and told in found.detail


# ---- CUDA, TensorRT, plugins, pycuda -------------------------------------------------------------


def test_cuda(board: Board) -> None:
    found = board()["CUDA toolkit"]
    assert found.status == "ok" and found.detail.startswith("12.6.68, ")


def test_no_compiler(board: Board) -> None:
    found = board({"usr/local/cuda/bin/nvcc": None})["CUDA toolkit"]
    assert found.status == "missing" and "CUDA 12.6.68 without its compiler" in found.detail


def test_elsewhere_than_on_a_jetson_there_is_no_jetpack(tmp_path: Path) -> None:
    for finding in board_checks.tensorrt_checks(read_host(tmp_path)):
        assert finding.status == "missing" and "apt" not in finding.detail


def test_tensorrt(board: Board) -> None:
    found = board()["TensorRT"]
    assert found.status == "ok" and found.detail.startswith("10.3.0.30, headers in ")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"var/lib/dpkg/status": ""}, "no libnvinfer, expected 10.3 or newer"),
        (
            {"usr/include/aarch64-linux-gnu/NvInferRuntime.h": None},
            "sudo apt install libnvinfer-dev",
        ),
        (
            {
                "var/lib/dpkg/status": "Package: libnvinfer8\nStatus: install ok installed\n"
                "Version: 8.5.2-1+cuda11.4\n"
            },
            "8.5.2, expected 10.3 or newer",
        ),
    ],
)
def test_tensorrt_is_missing(board: Board, changes: dict[str, str | None], told: str) -> None:
    found = board(changes)["TensorRT"]
    assert found.status == "missing" and told in found.detail


def test_tensorrt_in_python(board: Board, installed: Callable[..., None]) -> None:
    installed(tensorrt="10.3.0")
    found = board()["TensorRT in Python"]
    assert found.status == "untested" and found.detail.startswith("10.3.0: no engine was ever")


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        (None, "sudo apt install python3-libnvinfer"),
        ("python3.10", "and this environment does not see it: python3.10 -m venv --system-site"),
        ("python3.12", "JetPack has it for python3.12, and this is python3.10: python3.12 -m venv"),
    ],
)
def test_tensorrt_is_not_seen_by_python(
    board: Board,
    installed: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    folder: str | None,
    told: str,
) -> None:
    monkeypatch.setattr(
        board_checks, "sys", SimpleNamespace(version_info=SimpleNamespace(minor=10))
    )
    changes: dict[str, str | None] = {"usr/lib/python3.10/dist-packages/tensorrt/__init__.py": None}
    if folder is not None:
        changes[f"usr/lib/{folder}/dist-packages/tensorrt/__init__.py"] = ""
    found = board(changes)["TensorRT in Python"]
    assert found.status == "missing" and told in found.detail


def test_plugins_that_are_not_there(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise UserError("the TensorRT plugin library is not installed: build it")

    monkeypatch.setattr(tensorrt_library, "PluginLibrary", missing)
    found = board()["TensorRT plugins"]
    assert found == Finding(
        "TensorRT plugins", "missing", "the TensorRT plugin library is not installed: build it"
    )


@pytest.mark.parametrize(
    ("made_for", "status"), [("87-real", "untested"), ("80-real,87", "untested"), ("90", "missing")]
)
def test_plugins_for_a_gpu(
    board: Board, monkeypatch: pytest.MonkeyPatch, made_for: str, status: str
) -> None:
    library = SimpleNamespace(path=Path("libbitmtp_tensorrt.so"), architectures=made_for)
    monkeypatch.setattr(tensorrt_library, "PluginLibrary", lambda: library)
    found = board()["TensorRT plugins"]
    assert found.status == status and made_for in found.detail


def test_pycuda(board: Board, installed: Callable[..., None]) -> None:
    assert "pip install '.[jetson]'" in board()["pycuda"].detail
    installed(pycuda="2026.1")
    assert board()["pycuda"] == Finding("pycuda", "ok", "2026.1")


# ---- permissions, power, jtop, memory ------------------------------------------------------------


def test_groups(board: Board) -> None:
    assert board()["groups"].status == "ok"
    assert board(account=ROOT)["groups"].status == "ok"
    found = board(account=Account("ada", frozenset({"video"}), root=False))["groups"]
    assert found.status == "missing"
    assert found.detail.endswith("sudo usermod -aG render ada, then log in again")


def test_who_runs_this() -> None:
    here = board_checks.this_account()
    assert here.name == pwd.getpwuid(os.geteuid()).pw_name
    assert here.root == (os.geteuid() == 0)
    assert grp.getgrgid(os.getegid()).gr_name in here.groups


def test_power_mode(board: Board) -> None:
    found = board()["power mode"]
    assert found.status == "ok"
    assert found.detail.startswith(
        "40W, of 0 MAXN_SUPER, 1 10W, 4 40W; to change it: sudo nvpmodel"
    )
    assert "; to change it: nvpmodel" in board(account=ROOT)["power mode"].detail


def test_a_board_that_was_not_flashed_as_super(board: Board) -> None:
    told = "super modes take a board that was flashed as super"
    assert told in board()["power mode"].detail
    conf = {
        "etc/nvpmodel.conf": JETPACK6["etc/nvpmodel.conf"],
        "var/lib/nvpmodel/status": "pmode:0",
    }
    assert told not in board(conf, files=JETPACK7)["power mode"].detail


@pytest.mark.parametrize(
    ("changes", "status", "told"),
    [
        ({"etc/nvpmodel.conf": None}, "missing", "which JetPack brings: sudo apt install"),
        ({"var/lib/nvpmodel/status": None}, "missing", "tells the mode, of 0 MAXN_SUPER"),
        (
            {"etc/nvpmodel.conf": "< POWER_MODEL ID=4 NAME=120W >"},
            "untested",
            "not in profile orin-nx-16gb: 120W",
        ),
    ],
)
def test_power_modes_in_disorder(
    board: Board, changes: dict[str, str | None], status: str, told: str
) -> None:
    found = board(changes)["power mode"]
    assert found.status == status and told in found.detail


def test_a_power_mode_that_only_nvpmodel_tells(
    board: Board, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As `power --modes` has it, by the same reader."""
    command = tmp_path / "bin" / "nvpmodel"
    write_file(command, "#!/bin/sh\nprintf 'NV Power Mode: 10W\\n1\\n'\n")
    command.chmod(0o755)
    monkeypatch.setattr("bitmtp_edge.power.modes.find_command", lambda root: str(command))
    found = board({"var/lib/nvpmodel/status": None})["power mode"]
    assert found.status == "ok" and found.detail.startswith("10W, of 0 MAXN_SUPER, 1 10W, 4 40W;")
    found = board({"var/lib/nvpmodel/status": None, "etc/nvpmodel.conf": None})["power mode"]
    assert found.status == "ok"  # of the file that is there already


def test_swap_as_advised_is_a_swap(board: Board) -> None:
    """All four commands: a file that is only allocated is none."""
    found = board(files=JETPACK7)["swap"]
    commands = ("fallocate", "chmod 600", "mkswap", "swapon")
    places = [found.detail.index(f"sudo {each}") for each in commands]
    assert found.status == "missing" and places == sorted(places) and "/etc/fstab" in found.detail


def test_power_sensors(board: Board) -> None:
    assert board()["power sensors"].status == "missing"
    chip = "sys/class/hwmon/hwmon3"
    files = {
        f"{chip}/name": "ina3221",
        f"{chip}/in1_label": "VDD_IN",
        f"{chip}/in1_input": "5024",
        f"{chip}/curr1_input": "6020",
    }
    assert board(files)["power sensors"] == Finding("power sensors", "ok", "VDD_IN 30.2 W")
    assert "cannot be read" in board({f"{chip}/curr1_input": "x"})["power sensors"].detail
    labelled = {f"{chip}/in2_label": "VDD_SOC", f"{chip}/in2_input": "5000"}
    without = {f"{chip}/in1_enable": "0", **labelled, f"{chip}/curr2_input": "1000"}
    found = board(without)["power sensors"]
    assert found.status == "missing" and "VDD_SOC 5.0 W; no total: VDD_IN" in found.detail


@pytest.mark.parametrize(
    ("files", "account", "status", "told"),
    [
        ({}, USER, "missing", "sudo systemctl restart jtop.service"),
        ({"run/jtop.sock": ""}, USER, "ok", "4.3.2, its service runs"),
        ({"run/jtop.sock": ""}, ROOT, "ok", "4.3.2, its service runs"),
        (
            {"run/jtop.sock": ""},
            Account("ada", frozenset(), root=False),
            "missing",
            "sudo usermod -aG jtop ada",
        ),
    ],
)
def test_jtop(
    board: Board,
    installed: Callable[..., None],
    files: dict[str, str | None],
    account: Account,
    status: str,
    told: str,
) -> None:
    installed(jtop="4.3.2")
    found = board(files, account)["jtop"]
    assert found.status == status and told in found.detail


def test_jtop_is_not_needed(board: Board, installed: Callable[..., None]) -> None:
    assert "nor needed" in board()["jtop"].detail


def test_memory_and_swap(board: Board) -> None:
    found = board()
    assert found["memory"] == Finding("memory", "ok", "13.7 of 15.2 GiB available")
    assert found["swap"] == Finding("swap", "ok", "7.6 GiB")
    low = "MemTotal: 15972352 kB\nMemAvailable: 8388608 kB\nSwapTotal: 0 kB\n"
    found = board({"proc/meminfo": low})
    assert "8.0 of 15.2 GiB available, where a board without a desktop has 14.3" in (
        found["memory"].detail
    )
    assert found["swap"].status == "missing" and "fallocate" in found["swap"].detail


def test_a_container_tells_little(tmp_path: Path) -> None:
    write_file(tmp_path / "proc/device-tree/compatible", "nvidia,p3767-0000\0")
    found = {
        each.subject: each for each in board_checks.board_checks(read_host(tmp_path), tmp_path)
    }
    assert found["L4T"].status == "missing" and "memory" not in found
