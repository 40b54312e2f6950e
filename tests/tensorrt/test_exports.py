"""What the plugin library shows, and what it wants from others."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bitmtp_edge.engines import abi

ROOT = Path(__file__).parents[2]


def _listed(*command: str) -> list[str]:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} (package binutils)")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def _declared(header: str) -> set[str]:
    text = (ROOT / "plugins" / "include" / "bitmtp" / header).read_text()
    return set(re.findall(r"\b(bitmtp_(?:cuda|graph|tensorrt)_\w+)\(", text))


def test_the_c_abi_and_nothing_else_is_exported(plugin_library: str) -> None:
    lines = _listed("nm", "-D", "--defined-only", plugin_library)
    entry_points = {"setLoggerFinder", "getCreators"}
    declared = _declared("abi.h") | _declared("tensorrt.h") | entry_points
    assert {line.split()[-1] for line in lines} == declared


def test_nothing_of_tensorrt_or_cuda_is_wanted(plugin_library: str) -> None:
    """Whoever loads it has TensorRT, under whatever name; the driver comes with the GPU."""
    lines = _listed("nm", "-D", "--undefined-only", plugin_library)
    names = {line.split()[-1] for line in lines}
    assert all("GLIBC" in name or re.match(r"_ITM|_ZGT|__cxa_|__gmon", name) for name in names)
    needed = [x for x in _listed("readelf", "-d", plugin_library) if "(NEEDED)" in x]
    libraries = {re.sub(r".*\[(.*)\].*", r"\1", line) for line in needed}
    system = r"lib(c|m|dl|rt|pthread)\.so\.\d|ld-linux-[\w-]+\.so\.\d"
    assert all(re.fullmatch(system, name) for name in libraries), libraries


def test_versions(plugin_library: str) -> None:
    library = ctypes.CDLL(plugin_library)
    assert library.bitmtp_tensorrt_abi_version() == 1
    assert library.bitmtp_cuda_abi_version() == abi.VERSION
    assert library.bitmtp_tensorrt_headers() >= 10_03_00
    library.bitmtp_tensorrt_architectures.restype = ctypes.c_char_p
    assert re.fullmatch(rb"\d+[a-z-]*(,\d+[a-z-]*)*", library.bitmtp_tensorrt_architectures())


def test_programmatic_launch_is_off(plugin_library: str) -> None:
    set_launch = ctypes.CDLL(plugin_library).bitmtp_cuda_set_programmatic_launch
    assert set_launch(0) == 0  # the former value
