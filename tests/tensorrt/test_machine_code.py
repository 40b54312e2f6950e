"""Machine code for Orin, sm_87: the integer instructions that the kernels are written for."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def forms(plugin_library: str) -> dict[str, list[Any]]:
    """The forms of every kernel for sm_87, by its name and weight kind."""
    cuobjdump = shutil.which("cuobjdump")
    if cuobjdump is None:
        pytest.skip("no cuobjdump (package nvidia-cuda-cuobjdump)")
    summarise = runpy.run_path(str(ROOT / "tools" / "sass_summary.py"))["summarise"]
    try:
        found: dict[str, list[Any]] = summarise(plugin_library, "sm_87", cuobjdump)
    except ValueError as error:
        pytest.skip(str(error))
    return found


KINDS = ("ternary", "4-bit base", "8-bit composed", "int8")


def test_one_row_is_dotted_by_dp4a(forms: dict[str, list[Any]]) -> None:
    for name, same in forms.items():
        if "_row_kernel" in name:
            assert all(kernel.counts["dp4a"] > 0 for kernel in same), name
            assert all(kernel.counts["int8 mma"] == 0 for kernel in same), name
    for kind in KINDS:
        assert f"head_row_kernel, {kind}" in forms
        assert kind == "int8" or f"linear_row_kernel, {kind}" in forms


def test_several_rows_are_multiplied_by_tensor_cores(forms: dict[str, list[Any]]) -> None:
    wide = [f"head_kernel, {kind}" for kind in KINDS]
    wide += [f"linear_kernel, {kind}" for kind in KINDS[:3]]
    for name in (*wide, "linear_window_kernel"):
        assert all(kernel.counts["int8 mma"] > 0 for kernel in forms[name]), name
        assert all(kernel.counts["dp4a"] == 0 for kernel in forms[name]), name
    assert all(kernel.counts["fp16 mma"] > 0 for kernel in forms["attend_kernel"])


def test_registers_and_spills(forms: dict[str, list[Any]]) -> None:
    """Forms that spill more than a few words are of the windows' kernel alone: docs/tensorrt.md."""
    every = [kernel for same in forms.values() for kernel in same]
    assert all(0 < kernel.registers <= 255 for kernel in every)
    assert {kernel.name for kernel in every if kernel.stack > 32} <= {"linear_window_kernel"}
    assert all(kernel.stack <= 256 for kernel in every)
