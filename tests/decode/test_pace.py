from __future__ import annotations

import pytest

from bitmtp_edge.decode.pace import MOST, Pace


def test_nothing_known_is_as_expected() -> None:
    assert Pace().of(0) == Pace().of(8) == 1.0


def test_a_block_has_its_own_pace_and_the_others_the_common_one() -> None:
    pace = Pace()
    for _ in range(500):
        pace.see(4, 1.1, 1.0)
    assert pace.of(4) == pytest.approx(1.1, abs=0.005)
    assert pace.of(8) == pytest.approx(1.1, abs=0.005)
    for _ in range(20):
        pace.see(8, 4.5, 5.0)
    assert pace.of(8) == pytest.approx(0.92, abs=0.01)
    assert pace.of(4) > 1.09


def test_one_iteration_of_trouble_counts_for_little() -> None:
    pace = Pace()
    for took in [1.0] * 99 + [1000.0]:
        pace.see(0, took, 1.0)
    assert pace.of(0) <= 1 + (MOST - 1) / 100


def test_what_fades_gives_way() -> None:
    pace = Pace()
    for _ in range(200):
        pace.see(4, 1.5, 1.0)
    pace.fade(0.01)
    for _ in range(200):
        pace.see(4, 1.0, 1.0)
    assert pace.of(4) < 1.02
