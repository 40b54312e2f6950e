"""DualPlaneLinear in both roles: fused projections, scales a row and a group, exact dots."""

from __future__ import annotations

import pytest

from .linear_sweep import SHAPES, sweep, sweep_unit_scales

pytestmark = pytest.mark.usefixtures("library")


@pytest.mark.parametrize("residual", (False, True))
@pytest.mark.parametrize("group_size", (0, 64, 128))
@pytest.mark.parametrize("rows, width", SHAPES)
@pytest.mark.parametrize("planes", ("w4", "w8"))
def test_fused_projections(
    planes: str, rows: int, width: int, group_size: int, residual: bool
) -> None:
    sweep(planes, rows, width, group_size, residual)


@pytest.mark.parametrize("group_size", (0, 64, 128))
@pytest.mark.parametrize("rows, width", ((37, 200), (13, 960)))
@pytest.mark.parametrize("planes", ("w4", "w8"))
def test_unit_scales_are_exact(planes: str, rows: int, width: int, group_size: int) -> None:
    sweep_unit_scales(planes, rows, width, group_size)


def test_a_row_scale_over_a_long_row() -> None:
    """A dot past 2^24 is rounded once by every engine."""
    sweep("w8", 11, 8192, 0, False)
