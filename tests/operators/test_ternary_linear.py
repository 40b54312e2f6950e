"""TernaryLinear: fused projections, scales a row and a group, the exact integer dot."""

from __future__ import annotations

import pytest

from .linear_sweep import SHAPES, sweep, sweep_unit_scales

pytestmark = pytest.mark.usefixtures("library")


@pytest.mark.parametrize("residual", (False, True))
@pytest.mark.parametrize("group_size", (0, 64, 128))
@pytest.mark.parametrize("rows, width", SHAPES)
def test_fused_projections(rows: int, width: int, group_size: int, residual: bool) -> None:
    sweep("ternary", rows, width, group_size, residual)


@pytest.mark.parametrize("group_size", (0, 64, 128))
@pytest.mark.parametrize("rows, width", ((37, 200), (13, 4096)))
def test_unit_scales_are_exact(rows: int, width: int, group_size: int) -> None:
    sweep_unit_scales("ternary", rows, width, group_size)
