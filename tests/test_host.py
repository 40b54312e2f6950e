"""host: what a machine is, from files of machines that are not here."""

from __future__ import annotations

from pathlib import Path

import pytest

from bitmtp_edge.host import Host, installed_packages, memory_facts, read_host

from .boards import JETPACK6, JETPACK7, write_board, write_file


def test_orin_nx_with_jetpack_6(tmp_path: Path) -> None:
    host = read_host(write_board(tmp_path, JETPACK6))
    assert host.jetson and not host.super_mode
    assert host.board == "NVIDIA Jetson Orin NX Engineering Reference Developer Kit"
    assert host.modules == ("p3767-0000",)
    assert (host.l4t, host.jetpack, host.cuda, host.tensorrt) == (
        "36.4.3",
        "6.2",
        "12.6.68",
        "10.3.0.30",
    )
    assert host.nvcc == tmp_path / "usr/local/cuda/bin/nvcc"
    assert host.headers == tmp_path / "usr/include/aarch64-linux-gnu"
    assert host.bindings == (tmp_path / "usr/lib/python3.10/dist-packages/tensorrt",)
    assert (host.memory, host.available, host.swap) == (15598 << 20, 14000 << 20, 7799 << 20)


def test_orin_nano_with_jetpack_7(tmp_path: Path) -> None:
    host = read_host(write_board(tmp_path, JETPACK7))
    assert host.jetson and host.super_mode
    assert host.modules == ("p3767-0005",)
    assert (host.l4t, host.jetpack, host.cuda, host.tensorrt) == (
        "39.2.0",
        "7.2",
        "13.2.1",
        "10.16.2.10",
    )


def test_a_machine_that_is_none(tmp_path: Path) -> None:
    nothing = Host(None, (), False, None, None, None, None, None, None, (), None, None, None)
    assert read_host(tmp_path) == nothing
    assert not nothing.jetson


def test_l4t_of_the_package_where_the_release_file_is_missing(tmp_path: Path) -> None:
    write_board(tmp_path, JETPACK6)
    (tmp_path / "etc/nv_tegra_release").unlink()
    assert read_host(tmp_path).l4t == "36.4.3"


@pytest.mark.parametrize(
    ("line", "l4t", "jetpack"),
    [
        ("# R36 (release), REVISION: 5.0, GCID: 1, BOARD: generic", "36.5.0", "6.2.2"),
        ("# R39 (release), REVISION: 2.1, GCID: 1, BOARD: generic", "39.2.1", "7.2.1"),
        ("# R39 (release), REVISION: 2, GCID: 1", "39.2.0", "7.2"),
        ("# R36 (release), REVISION: 4.0, GCID: 1", "36.4.0", "6.1"),
        ("# R36 (release), REVISION: 4.7, GCID: 1", "36.4.7", "6.2"),
        ("# R36 (release), REVISION: 40.0, GCID: 1", "36.40.0", None),
        ("# R36 (release), REVISION: 99.0, GCID: 1", "36.99.0", None),
        ("what is this", None, None),
    ],
)
def test_release_lines(tmp_path: Path, line: str, l4t: str | None, jetpack: str | None) -> None:
    write_file(tmp_path / "etc/nv_tegra_release", line)
    host = read_host(tmp_path)
    assert (host.l4t, host.jetpack) == (l4t, jetpack)


def test_removed_packages_are_not_installed(tmp_path: Path) -> None:
    write_file(
        tmp_path / "var/lib/dpkg/status",
        "Package: a\nStatus: install ok installed\nVersion: 1.2-3\n\n"
        "Package: b\nStatus: deinstall ok config-files\nVersion: 4\n\n"
        "Package: c\nStatus: hold ok installed\nVersion: 5\nDescription: x\n Version: 9\n",
    )
    assert installed_packages(tmp_path) == {"a": "1.2-3", "c": "5"}


def test_tensorrt_without_a_package_is_told_by_its_file(tmp_path: Path) -> None:
    for name in ("libnvinfer.so.10", "libnvinfer.so.10.3.0", "libnvinfer_plugin.so.10.3.0"):
        write_file(tmp_path / "usr/lib/aarch64-linux-gnu" / name, "")
    assert read_host(tmp_path).tensorrt == "10.3.0"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 50_000, '{"cuda": 3}', '{"cuda": {"version": 12}}']
)
def test_a_damaged_cuda_version(tmp_path: Path, text: str) -> None:
    write_file(tmp_path / "usr/local/cuda/version.json", text)
    assert read_host(tmp_path).cuda is None


def test_numbers_that_no_machine_tells(tmp_path: Path) -> None:
    write_file(tmp_path / "proc/meminfo", f"MemTotal: {'9' * 5000} kB\nSwapTotal: 4 kB\n")
    assert memory_facts(tmp_path) == {"SwapTotal": 4096}
    release = f"# R{'9' * 5000} (release), REVISION: 4.3, GCID"
    write_file(tmp_path / "etc/nv_tegra_release", release)
    assert read_host(tmp_path).l4t is None
