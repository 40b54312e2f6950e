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


def test_ar_steps_that_were_not_seen_are_no_slower_than_the_table() -> None:
    pace = Pace()
    for _ in range(500):
        pace.see(4, 1.2, 1.0)
    assert pace.of(8) == pytest.approx(1.2, abs=0.01)
    assert pace.of(0) == 1.0


def test_one_iteration_of_trouble_counts_for_little() -> None:
    pace = Pace()
    for took in [1.0] * 99 + [1000.0]:
        pace.see(0, took, 1.0)
    assert pace.of(0) <= 1 + (MOST - 1) / 99


def test_slow_first_steps_of_a_block_make_it_little_dearer() -> None:
    pace = Pace()
    for _ in range(50):
        pace.see(0, 1.0, 1.0)
    pace.see(4, 50.0, 5.0)
    pace.see(4, 50.0, 5.0)
    assert pace.of(4) < 1.12


def test_a_machine_that_gets_slow_is_followed() -> None:
    pace = Pace()
    for _ in range(1500):
        pace.see(0, 3.0, 1.0)
        pace.fade(1 - 1 / 250)
    assert pace.of(0) == pytest.approx(3.0, rel=0.1)


def test_what_fades_gives_way() -> None:
    pace = Pace()
    for _ in range(200):
        pace.see(4, 1.2, 1.0)
    pace.fade(0.01)
    for _ in range(200):
        pace.see(4, 1.0, 1.0)
    assert pace.of(4) < 1.02
