"""Drills: every equation holds."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest


@pytest.mark.usefixtures("reasoning_gym")
def test_drills_are_right(recipe: Any) -> None:
    drills = recipe("drills")
    for seed in range(500):
        _, solved = drills.drill(Random(seed))
        plain = re.sub("[$€£,]", "", solved).replace("x", "*").replace("×", "*")
        links = [eval(link.replace("÷", "/")) for link in plain.split("=")]
        assert max(links) - min(links) < 1e-6, solved
