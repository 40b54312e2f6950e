"""Rates of drafts: learnt from every block, hopeful where nothing was seen, fading."""

from __future__ import annotations

import pytest

from bitmtp_edge.decode.acceptance import HOPE, Acceptance, Outlook


def test_a_block_tells_of_every_smaller_one() -> None:
    seen = Acceptance(4, judged=False)
    for right in (4, 4, 2, 0) * 50:
        seen.see_right(4, 0, right)
    outlook = seen.outlook()
    assert outlook.right(2)[0] == pytest.approx(1.5, abs=0.03)
    assert outlook.right(4)[0] == pytest.approx(2.5, abs=0.05)


def test_positions_behind_a_failure_are_not_tried() -> None:
    """Three drafts of four are never looked at, and are thought alike, but not quite as bad."""
    seen = Acceptance(4, judged=True)
    for _ in range(200):
        seen.see_confident(4, 0, cut=False)
    lengths = seen.outlook().lengths
    rates = [lengths[i + 1] / lengths[i] for i in range(4)]
    assert rates[0] < 0.01
    assert rates[0] < rates[1] < rates[2] < rates[3] < HOPE


def test_blocks_cut_short_are_followed_by_others() -> None:
    seen = Acceptance(4, judged=True)
    for _ in range(100):
        seen.see_confident(4, 4, cut=False)
        seen.see_confident(4, 0, cut=True)
    outlook = seen.outlook()
    assert outlook.lengths[4] > 0.9
    assert outlook.after_cut < 0.1


def test_confident_drafts_and_those_behind_have_rates_of_their_own() -> None:
    """All confident ones are right, none behind them is."""
    seen = Acceptance(4, judged=True)
    for confident in (1, 2, 3, 4) * 50:
        seen.see_right(4, confident, confident)
    right = seen.outlook().right(4)
    assert right[1:] == pytest.approx([1, 2, 3, 4], abs=0.15)


def test_what_was_seen_fades_into_hope() -> None:
    seen, untouched = Acceptance(4, judged=True), Acceptance(4, judged=True).outlook()
    for _ in range(100):
        seen.see_confident(4, 0, cut=False)
        seen.see_right(4, 0, 0)
    assert seen.outlook().lengths[1] < 0.05 and seen.outlook().right(4)[0] < 0.1
    seen.fade(1e-6)
    assert seen.outlook().lengths == pytest.approx(untouched.lengths, rel=1e-3)
    assert seen.outlook().right(4) == pytest.approx(untouched.right(4), rel=1e-3)


def test_unjudged_drafts_are_not_confident() -> None:
    assert Acceptance(3, judged=False).outlook().lengths == [1, 0, 0, 0]


def test_flawless() -> None:
    assert Outlook.flawless(3).right(3) == [3, 3, 3, 3]
