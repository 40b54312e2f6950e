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
    rows = {name: same for name, same in forms.items() if "_row_kernel" in name}
    for name, same in rows.items():
        assert all(kernel.counts["dp4a"] > 0 for kernel in same), name
        assert all(kernel.counts["int8 mma"] == 0 for kernel in same), name
    assert kinds_of("head_", rows) == set(KINDS)
    assert kinds_of("linear_", rows) == set(KINDS) - {"int8"}


def test_several_rows_are_multiplied_by_tensor_cores(forms: dict[str, list[Any]]) -> None:
    starts = ("head_", "linear_")
    wide = {name: same for name, same in forms.items() if name.startswith(starts)}
    wide = {name: same for name, same in wide.items() if "_row_kernel" not in name}
    for name, same in wide.items():
        assert all(kernel.counts["int8 mma"] > 0 for kernel in same), name
        # These sum their activation codes by dp4a: tensor cores would take as long as a unit.
        sums = name.startswith(("linear_pass_kernel", "linear_window_kernel", "head_team_kernel"))
        assert sums or all(kernel.counts["dp4a"] == 0 for kernel in same), name
    assert kinds_of("head_", wide) == set(KINDS)
    assert kinds_of("linear_", wide) == set(KINDS) - {"int8"}
    assert all(kernel.counts["fp16 mma"] > 0 for kernel in forms["attend_kernel"])


def kinds_of(start: str, forms: dict[str, list[Any]]) -> set[str]:
    """Weight kinds of the kernels whose names start so."""
    return {name.partition(", ")[2] for name in forms if name.startswith(start)} - {""}


def test_registers_and_spills(forms: dict[str, list[Any]]) -> None:
    every = [kernel for same in forms.values() for kernel in same]
    assert all(0 < kernel.registers <= 255 for kernel in every)
    assert {kernel.name for kernel in every if kernel.stack > 32} == set()
