"""Builds of a test, by the states' names."""

from __future__ import annotations

import pytest

from bitmtp_edge.building.plans import BuildReport, build_plans
from bitmtp_edge.building.states import chosen_states
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.tensorrt_manifest import plan_folder
from bitmtp_edge.errors import UserError


def build(bundle: Bundle, *patterns: str, told: list[str] | None = None) -> BuildReport:
    lines: list[str] = [] if told is None else told
    return build_plans(bundle, chosen_states(bundle, patterns), lines.append)


def refused(bundle: Bundle, *patterns: str) -> str:
    with pytest.raises(UserError) as caught:
        build(bundle, *patterns)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names_of(bundle: Bundle) -> set[str]:
    return {path.stem for path in plan_folder(bundle).glob("*.plan")}
