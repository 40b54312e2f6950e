"""How codes lie in memory: words computed by hand, and round trips."""

from __future__ import annotations

import numpy as np
import pytest

from bitmtp_edge import layout

SHAPES = [(1, 1), (8, 64), (9, 65), (16, 128), (7, 63), (301, 200), (1, 576)]


def word(*fields: tuple[int, int]) -> int:
    """A signed int32 from pairs of a value and the bit it starts at."""
    total = sum(value << bit for value, bit in fields)
    return total - (1 << 32) if total >= 1 << 31 else total


# Bit offsets of a word's codes, in column order: docs/numerics.md.
OFFSETS = {
    2: [0, 8, 16, 24, 2, 10, 18, 26, 4, 12, 20, 28, 6, 14, 22, 30],
    4: [0, 8, 16, 24, 4, 12, 20, 28],
    8: [0, 8, 16, 24],
}


@pytest.mark.parametrize(
    ("bits", "codes", "expected"),
    [
        # unsigned: -1 -> 0, 0 -> 1, 1 -> 2; columns 0-3 in the low bits of bytes 0-3
        (2, [1, 0, -1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1], 0x16545556),
        # unsigned: +8; column 4 is the high nibble of byte 0
        (4, [1, 2, 3, -8, -1, 0, 7, -7], 0x10FB8A79),
        # unsigned: +128
        (8, [1, -128, 127, 0], word((129, 0), (0, 8), (255, 16), (128, 24))),
    ],
)
def test_a_word_by_hand(bits: int, codes: list[int], expected: int) -> None:
    packed = layout.pack_weight(np.array([codes], np.int8), bits)
    assert packed.dtype == np.int32
    assert packed[0, 0, 0] == expected
    zero = layout.zero_point(bits)
    by_fields = word(*((c + zero, at) for c, at in zip(codes, OFFSETS[bits], strict=True)))
    assert packed[0, 0, 0] == by_fields
    assert layout.bit_offsets(bits).tolist() == OFFSETS[bits]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_where_a_code_lies(bits: int) -> None:
    """Column c of row r: tile r // 8, word c // (codes a word), lane r % 8."""
    a_word = 32 // bits
    rows, width = 19, 100
    empty = layout.pack_weight(np.zeros((rows, width), np.int8), bits)
    assert empty.shape == layout.packed_shape(rows, width, bits) == (3, 128 // a_word, 8)
    for row, column in ((0, 0), (7, 1), (8, 5), (18, 99), (13, a_word)):
        codes = np.zeros((rows, width), np.int8)
        codes[row, column] = 1
        differs = layout.pack_weight(codes, bits) ^ empty
        assert np.argwhere(differs).tolist() == [[row // 8, column // a_word, row % 8]]
        lowest = int(differs[row // 8, column // a_word, row % 8]) & 0xFFFFFFFF
        assert lowest.bit_length() - 1 - OFFSETS[bits][column % a_word] in range(bits)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_padding_holds_the_zero_point(bits: int) -> None:
    packed = layout.pack_weight(np.full((9, 65), -1, np.int8), bits)
    whole = layout.unpack_weight(packed, 16, 128, bits)
    assert (whole[:9, :65] == -1).all()
    assert (whole[9:] == 0).all() and (whole[:, 65:] == 0).all()


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int64])
@pytest.mark.parametrize(("bits", "low", "high"), [(2, -1, 1), (4, -8, 7), (8, -128, 127)])
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_round_trip(
    shape: tuple[int, int], bits: int, low: int, high: int, dtype: type[np.signedinteger]
) -> None:
    """The codes' own dtype must not overflow when the zero point is added."""
    codes = np.random.default_rng(1).integers(low, high + 1, shape).astype(dtype)
    codes.flat[0] = low
    codes.flat[-1] = high
    packed = layout.pack_weight(codes, bits)
    back = layout.unpack_weight(packed, *shape, bits)
    assert back.dtype == np.int8
    np.testing.assert_array_equal(back, codes)


@pytest.mark.parametrize("group_size", [0, 64, 128])
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_scales_round_trip(rows: int, width: int, group_size: int) -> None:
    tiles, groups, lanes = layout.scales_shape(rows, width, group_size)
    assert groups == layout.group_count(width, group_size) and lanes == 8
    scales = np.random.default_rng(2).random((rows, groups)).astype(np.float16)
    packed = layout.pack_scales(scales)
    assert packed.shape == (tiles, groups, lanes) and packed.dtype == np.float16
    np.testing.assert_array_equal(layout.unpack_scales(packed, rows), scales)
    assert packed[0, groups - 1, 0] == scales[0, groups - 1]
    assert (layout.unpack_scales(packed, tiles * 8)[rows:] == 0).all()


@pytest.mark.parametrize(
    ("width", "group_size", "groups"),
    [(64, 64, 1), (65, 64, 2), (576, 64, 9), (576, 128, 5), (1536, 128, 12), (960, 0, 1)],
)
def test_the_last_group_may_be_short(width: int, group_size: int, groups: int) -> None:
    assert layout.group_count(width, group_size) == groups


@pytest.mark.parametrize(("width", "padded"), [(1, 64), (64, 64), (65, 128), (576, 576)])
def test_padded_width(width: int, padded: int) -> None:
    assert layout.padded_width(width) == padded


@pytest.mark.parametrize("width", [1, 4, 63, 64, 65, 576])
def test_activations(width: int) -> None:
    codes = np.random.default_rng(3).integers(-127, 128, (3, width)).astype(np.int8)
    packed = layout.pack_activations(codes)
    assert packed.shape == (3, layout.padded_width(width) // 4) and packed.dtype == np.int32
    np.testing.assert_array_equal(layout.unpack_activations(packed, width), codes)
    assert (packed.view(np.int8)[:, width:] == 0).all()


def test_an_activation_word_by_hand() -> None:
    packed = layout.pack_activations(np.array([[1, -1, 127, -127]], np.int8))
    assert packed[0, 0] == word((1, 0), (255, 8), (127, 16), (129, 24))


@pytest.mark.parametrize("dtype", [np.int8, np.int64])
@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_kv_rows_round_trip(head_dim: int, dtype: type[np.signedinteger]) -> None:
    codes = np.random.default_rng(4).integers(-8, 8, (5, 6, head_dim)).astype(dtype)
    packed = layout.pack_kv(codes)
    assert packed.shape == (5, 6 * head_dim // 8) and packed.dtype == np.int32
    np.testing.assert_array_equal(layout.unpack_kv(packed, head_dim), codes)


def test_a_kv_word_by_hand() -> None:
    """The nibbles of a row lie as those of a weight."""
    codes = np.zeros((1, 2, 8), np.int8)
    codes[0, 1] = [1, 2, 3, -8, -1, 0, 7, -7]
    packed = layout.pack_kv(codes)
    assert packed[0].tolist() == [word((0x88888888, 0)), 0x10FB8A79]
