"""How codes lie in memory: the one owner of packing (docs/numerics.md, "Layouts").

Weights are tiles of 8 output rows, words of packed codes beside each other, so that a CPU lane is a
row and a GPU load of 16 bytes is four rows; engines map ``weights.bin`` as it is and repack
nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TILE_ROWS = 8

# Bits of a code in each packed table kind ("dual" is one plane of the two).
CODE_BITS = {"ternary": 2, "dual": 4, "int8": 8}


def padded_width(width: int) -> int:
    """Columns of a packed row: ``width`` rounded up to 64."""
    return -(-width // 64) * 64


def group_count(width: int, group_size: int) -> int:
    """Scales a row has: one for ``group_size`` 0, else one a started group of the padded width."""
    return 1 if group_size == 0 else -(-padded_width(width) // group_size)


def packed_shape(rows: int, width: int, bits: int) -> tuple[int, int, int]:
    """Shape of the int32 tile tensor of ``rows`` x ``width`` codes of ``bits`` bits."""
    return (-(-rows // TILE_ROWS), padded_width(width) * bits // 32, TILE_ROWS)


def scales_shape(rows: int, width: int, group_size: int) -> tuple[int, int, int]:
    """Shape of the fp16 scales of a packed weight."""
    return (-(-rows // TILE_ROWS), group_count(width, group_size), TILE_ROWS)


def zero_point(bits: int) -> int:
    """What is added to a signed code of ``bits`` bits before it is packed."""
    return 1 if bits == 2 else 1 << (bits - 1)


def bit_offsets(bits: int) -> NDArray[np.uint32]:
    """Bit offset in its word of each of the 32/bits codes of a word, in column order."""
    column = np.arange(32 // bits)
    return (8 * (column % 4) + bits * (column // 4)).astype(np.uint32)


def pack_weight(codes: NDArray[np.integer], bits: int) -> NDArray[np.int32]:
    """Packs signed ``codes`` int[N, K] into int32[ceil(N/8), Kp*bits/32, 8].

    Codes lie in [-2**(bits-1), 2**(bits-1)-1] (ternary, 2 bits: -1, 0, 1). Padding holds the zero
    point.
    """
    rows, width = codes.shape
    tiles, words, _ = packed_shape(rows, width, bits)
    full = np.full((tiles * TILE_ROWS, padded_width(width)), zero_point(bits), np.uint8)
    full[:rows, :width] = codes.astype(np.int16) + zero_point(bits)
    lanes = full.reshape(tiles, TILE_ROWS, words, 32 // bits)
    packed = np.zeros((tiles, TILE_ROWS, words), np.uint32)
    for column, shift in enumerate(bit_offsets(bits)):
        packed |= lanes[..., column].astype(np.uint32) << shift
    return np.ascontiguousarray(packed.transpose(0, 2, 1)).view(np.int32)


def unpack_weight(packed: NDArray[np.int32], rows: int, width: int, bits: int) -> NDArray[np.int8]:
    """The signed codes int8[rows, width] of a packed weight; the inverse of :func:`pack_weight`."""
    tiles, words, _ = packed.shape
    word = packed.view(np.uint32).transpose(0, 2, 1)[..., None]
    codes = (word >> bit_offsets(bits)) & np.uint32((1 << bits) - 1)
    full = codes.reshape(tiles * TILE_ROWS, words * (32 // bits)).astype(np.int16) - zero_point(
        bits
    )
    return full[:rows, :width].astype(np.int8)


def pack_scales(scales: NDArray[np.floating]) -> NDArray[np.float16]:
    """Packs ``scales`` [N, G] into fp16[ceil(N/8), G, 8]; padding rows get 0."""
    rows, groups = scales.shape
    tiles = -(-rows // TILE_ROWS)
    full = np.zeros((tiles * TILE_ROWS, groups), np.float16)
    full[:rows] = scales
    return np.ascontiguousarray(full.reshape(tiles, TILE_ROWS, groups).transpose(0, 2, 1))


def unpack_scales(packed: NDArray[np.float16], rows: int) -> NDArray[np.float16]:
    """The scales fp16[rows, G] of a packed scale tensor."""
    tiles, groups, _ = packed.shape
    return packed.transpose(0, 2, 1).reshape(tiles * TILE_ROWS, groups)[:rows]


def pack_activations(codes: NDArray[np.integer]) -> NDArray[np.int32]:
    """Packs int8 activation ``codes`` [M, K] into int32[M, Kp/4]; padding columns are 0."""
    rows, width = codes.shape
    full = np.zeros((rows, padded_width(width)), np.int8)
    full[:, :width] = codes
    return full.view(np.int32)


def unpack_activations(packed: NDArray[np.int32], width: int) -> NDArray[np.int8]:
    """The int8 codes [M, width] of packed activations."""
    return np.ascontiguousarray(packed).view(np.int8)[:, :width]


def unpack_kv(packed: NDArray[np.int32], head_dim: int) -> NDArray[np.int8]:
    """The signed 4-bit codes int8[slots, 2*kv_heads, head_dim] of a base or refinement plane."""
    slots, words = packed.shape
    codes = (packed.view(np.uint32)[..., None] >> bit_offsets(4)) & np.uint32(15)
    return (codes.reshape(slots, words * 8 // head_dim, head_dim).astype(np.int16) - 8).astype(
        np.int8
    )


def pack_kv(codes: NDArray[np.integer]) -> NDArray[np.int32]:
    """Packs signed 4-bit ``codes`` int[slots, 2*kv_heads, head_dim] into int32[slots,
    2*kv_heads*head_dim/8]."""
    slots, heads, head_dim = codes.shape
    unsigned = (codes.astype(np.int16) + 8).astype(np.uint32)
    words = unsigned.reshape(slots, heads * head_dim // 8, 8) << bit_offsets(4)
    return np.bitwise_or.reduce(words, axis=2).astype(np.uint32).view(np.int32)
