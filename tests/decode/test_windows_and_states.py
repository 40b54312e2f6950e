"""Windows keep the contract; steps take the narrowest replay state that fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.state import AcceptedPrefix
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import ReplayState, check_window, visible_slots
from bitmtp_edge.errors import UserError


@pytest.mark.parametrize("width", [1, 2, 5, 31, 32, 33, 64, 65])
def test_windows_keep_the_contract(width: int) -> None:
    tokens = list(range(100, 140))
    for start in (0, 7, 39):
        for drafts in ([], [5], [5, -1, -2], [-1] * 4):
            rows = len(tokens) - start + len(drafts)
            if rows > width:
                continue
            window = causal_window(tokens, start, drafts, width, 1, 2, kv4_length=0)
            check_window(ReplayState(width, 2, 64, "draft"), window, masks=2)
            assert window.token_ids.tolist()[:rows] == (tokens + drafts)[start:]
            assert window.head_slots.tolist() == [rows - 1, rows - 1]
            for spare in range(rows, width):
                assert visible_slots(window, spare) == [spare]
                assert window.positions[spare] == start == window.history_length
                assert window.token_ids[spare] == 0


def test_a_block_with_full_attention() -> None:
    window = causal_window([1, 2, 3], 1, [-1, -2], 6, 3, 4, two_way=2)
    assert window.mask.tolist() == [[0b1], [0b11], [0b1111], [0b1111], [0b10000], [0b100000]]
    assert window.token_ids.tolist() == [2, 3, -1, -2, 0, 0]
    state = ReplayState(6, 4, 64, "draft")
    check_window(state, window, masks=2, full_blocks=True)
    with pytest.raises(AssertionError, match="slot 2 sees positions"):
        check_window(state, window, masks=2)
    causal = causal_window([1, 2, 3], 1, [-1, -2], 6, 3, 4)
    check_window(state, causal, masks=2)
    with pytest.raises(AssertionError, match="slot 2 sees positions"):
        check_window(state, causal, masks=2, full_blocks=True)


def test_masks_stand_in_the_draft_role_behind_the_tokens() -> None:
    draft, verify = ReplayState(3, 1, 64, "draft"), ReplayState(3, 1, 64, "verify")
    window = causal_window([1, 2], 0, [-1], 3, 1, 1)
    check_window(draft, window, masks=1)
    with pytest.raises(AssertionError, match="the verify role has no masks"):
        check_window(verify, window, masks=1)
    with pytest.raises(AssertionError, match=r"masks have ids -1 \.\. 0"):
        check_window(draft, window)
    with pytest.raises(AssertionError, match=r"masks have ids -1 \.\. -1"):
        check_window(draft, causal_window([1, 2], 0, [-2], 3, 1, 1), masks=1)
    with pytest.raises(AssertionError, match="slot 2, a token, sees a mask"):
        check_window(draft, replace(window, token_ids=np.array([1, -1, 5], np.int32)), masks=1)


def test_a_window_has_the_dtypes_of_the_contract() -> None:
    window = causal_window([1, 2, 3], 1, [4], 5, 2, 5, kv4_length=1)
    for array in (window.token_ids, window.positions, window.mask, window.head_slots):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
    assert window.mask.tolist() == [[0b1], [0b11], [0b111], [0b1000], [0b10000]]
    assert window.head_slots.tolist() == [1, 2, 2, 2, 2]
    assert window.kv4_length == 1


def test_a_window_may_start_among_the_drafts() -> None:
    window = causal_window([1, 2], 3, [7, 8, 9], 2, 1, 1)
    assert window.token_ids.tolist() == [8, 9]
    assert window.positions.tolist() == [3, 4]


def test_what_steps_share_cannot_be_written() -> None:
    window = causal_window([1, 2], 0, [], 4, 1, 1)
    with pytest.raises(ValueError, match="read-only"):
        window.mask[0, 0] = 7


@pytest.mark.parametrize(("rows", "width", "heads", "outputs"), [(3, 2, 1, 1), (2, 2, 2, 1)])
def test_a_window_that_does_not_fit_is_an_error(
    rows: int, width: int, heads: int, outputs: int
) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        causal_window([1] * rows, 0, [], width, heads, outputs)


def states(**changes: object) -> ReplayStates:
    settings = {
        "segments": (512, 1024, 2048),
        "draft_widths": (1, 4, 5, 6, 7),
        "verify_widths": (1, 5, 8),
        "prefill_chunk": 64,
        "context": 2048,
        "draft_outputs": 4,
    }
    return ReplayStates(**(settings | changes))  # type: ignore[arg-type]


def test_a_step_takes_the_narrowest_state() -> None:
    known = states()
    assert known.state("verify", 1, 1, 512) == ReplayState(1, 1, 512, "verify")
    assert known.state("verify", 3, 3, 1024) == ReplayState(5, 5, 1024, "verify")
    assert known.state("verify", 6, 2, 512, True) == ReplayState(8, 8, 512, "verify", True)
    assert known.state("verify", 6, 1, 512) == ReplayState(8, 1, 512, "verify")
    assert known.state("verify", 40, 1, 512) == ReplayState(64, 1, 512, "verify")
    assert known.state("draft", 1, 1, 512) == ReplayState(1, 1, 512, "draft")
    assert known.state("draft", 5, 4, 512) == ReplayState(5, 4, 512, "draft")
    assert known.state("draft", 1, 1, 512) is known.state("draft", 1, 1, 512)


def test_drafts_of_another_block_have_other_outputs() -> None:
    known = states(segments=(512,), context=512)
    assert known.with_draft_outputs(4) is known
    two = known.with_draft_outputs(2)
    assert two.state("draft", 3, 2, 512) == ReplayState(4, 2, 512, "draft")
    assert {s.outputs for s in two.all() if s.role == "draft"} == {1, 2}


def test_mask_ids() -> None:
    assert states(mask_embeddings=1).mask_ids(3) == [-1, -1, -1]
    assert states(mask_embeddings=7).mask_ids(3) == [-1, -2, -3]
    assert states().mask_ids(0) == []


def test_what_fits_nowhere_is_refused() -> None:
    known = states()
    with pytest.raises(UserError, match=r"no draft window holds 8 tokens \(widths here: 1, 4, 5"):
        known.width("draft", 8, 4)
    with pytest.raises(UserError, match="no verify window holds 9 tokens"):
        known.width("verify", 9, 9)
    with pytest.raises(UserError, match="no KV segment holds 2049 rows"):
        known.segment_for(2049)


def test_segments() -> None:
    known = states(segments=(2048, 512, 1024))
    assert [known.segment_for(rows) for rows in (0, 512, 513, 2048)] == [512, 512, 1024, 2048]


def test_prefill_steps_are_few_and_at_least_half_full() -> None:
    known = states()
    assert [known.verify_width_at_most(rows) for rows in (1, 4, 5, 9, 64, 900)] == [
        1,
        1,
        5,
        8,
        64,
        64,
    ]
    assert [known.prefill_rows(rows) for rows in (1, 2, 3, 8, 9, 31, 32, 64, 65)] == [
        1,
        1,
        3,
        8,
        8,
        8,
        32,
        64,
        64,
    ]
    assert states(verify_widths=(5,)).prefill_rows(1) == 1


def test_all_states_are_those_that_steps_ask_for() -> None:
    known = states(segments=(512,), context=512)
    asked = {
        known.state(role, rows, heads, 512, False)
        for role, widest in (("draft", 7), ("verify", 8))
        for rows in range(1, widest + 1)
        for heads in range(1, rows + 1)
    } | {known.state("verify", 64, 1, 512)}
    assert set(known.all()) == asked
    assert len(known.all()) == len(asked)
    assert all(state.logits for state in known.all(logits=True))
    assert known.max_width == 64


@pytest.mark.parametrize(
    "changes",
    [
        {"segments": ()},
        {"segments": (0, 512)},
        {"verify_widths": ()},
        {"prefill_chunk": 0},
        {"draft_outputs": 0},
        {"context": 1},
        {"context": 2049},
    ],
)
def test_numbers_that_clash_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UserError, match="replay states: "):
        states(**changes)


def test_the_prefix_stays_aligned() -> None:
    prefix = AcceptedPrefix()
    prefix.check()
    prefix.resume([1, 2, 3, 4])
    assert prefix.pending == [1, 2, 3, 4]
    prefix.keep_verified(3)
    prefix.keep_drafted(2)  # drafts, not committed yet
    with pytest.raises(AssertionError):
        prefix.check()
    prefix.commit([5, 6])
    assert (prefix.tokens, prefix.verified, prefix.drafted) == ([1, 2, 3, 4, 5, 6], 5, 5)
    assert prefix.pending == [6]
    prefix.truncate(9)
    assert prefix.verified == 5
    prefix.truncate(3)
    assert (prefix.tokens, prefix.verified, prefix.drafted) == ([1, 2, 3], 2, 2)
    with pytest.raises(ValueError, match="at least one"):
        prefix.truncate(0)
    prefix.resume([1, 2, 9])
    assert (prefix.verified, prefix.pending) == (2, [9])
    prefix.resume([1])
    assert (prefix.verified, prefix.pending) == (0, [1])
    prefix.keep_drafted(0)
    prefix.drop_tentative()


def test_the_prefix_of_a_block_draft() -> None:
    prefix = AcceptedPrefix()
    prefix.resume([1, 2, 3])
    prefix.keep_verified(2)
    prefix.keep_drafted(1)  # the anchor's row
    prefix.settle()
    assert (prefix.verified, prefix.drafted, prefix.verify_start) == (3, 3, 2)
    prefix.drop_tentative()  # an interrupt here
    assert (prefix.verified, prefix.drafted) == (2, 2)
    prefix.keep_drafted(1)
    prefix.settle()
    prefix.commit_unverified([4, 5])
    assert (prefix.tokens, prefix.verified, prefix.pending) == ([1, 2, 3, 4, 5], 3, [4, 5])
    prefix.keep_drafted(2)
    prefix.settle()
    prefix.truncate(9)
    assert (prefix.verified, prefix.pending) == (4, [5])
    prefix.commit_unverified([6])
    assert prefix.pending == [5, 6]


def test_a_broken_prefix_is_noticed() -> None:
    for verified, drafted in ((-1, 0), (2, 1), (1, 3)):
        with pytest.raises(AssertionError, match="verified"):
            AcceptedPrefix([1, 2, 3], verified, drafted).check()
