"""TokenEmbedding: token ids to rows of the table, negative ids to rows of ``mask_embeddings``."""

from __future__ import annotations

import numpy as np

from bitmtp_edge.layout import CODE_BITS, bit_offsets, group_count, padded_width
from bitmtp_edge.operators import Node

from .common import (
    Body,
    code_zero_point,
    has,
    unpack,
    weight_scales,
    weight_tag,
)


def signature(node: Node) -> str:
    masks = "_masks" if has(node, "mask_embeddings") else ""
    return f"embed_{weight_tag(node)}{masks}"


def _lane(b: Body, tiles: str, lane: str, columns: int) -> str:
    """[M, columns] of the gathered tiles [M, columns, 8]: every token's own row of its tile."""
    index = b.op("Expand", b.reshape(lane, -1, 1, 1), b.ints(1, columns, 1))
    return b.reshape(b.op("GatherElements", tiles, index, axis=2), -1, columns)


def _packed_row(b: Body, node: Node, ids: str) -> str:
    """fp32[M, K] by rule 6 from tiles of 8 rows."""
    a, kind = node.attributes, str(node.attributes["kind"])
    width, group_size, bits = int(a["width"]), int(a["group_size"]), CODE_BITS[kind]
    tile = b.op("Div", ids, b.const(8, np.int32))
    lane = b.op("Mod", ids, b.const(8, np.int32))
    nested = has(node, "refinement")

    def codes(packed: str) -> str:
        words = _lane(b, b.op("Gather", packed, tile), lane, padded_width(width) * bits // 32)
        unsigned = b.reshape(b.cast(unpack(b, words, bit_offsets(bits), bits), "float32"), 0, -1)
        return b.columns(unsigned, 0, width)

    code = codes("table")
    if nested:
        code = b.op("Add", b.op("Mul", code, b.const(16.0)), codes("refinement"))
    code = b.op("Sub", code, b.const(code_zero_point(kind, nested)))
    scale = weight_scales(b, b.op("Gather", "scales", tile), nested)
    scale = _lane(b, scale, lane, group_count(width, group_size))
    if group_size:
        scale = b.op("Gather", scale, b.const(np.arange(width) // group_size, np.int64), axis=1)
    return b.op("Mul", code, scale)


def body(b: Body, node: Node) -> None:
    zero = b.const(0, np.int32)
    ids = "token_ids"
    at_least_0 = b.op("GreaterOrEqual", ids, zero)
    valid = b.op(
        "And", at_least_0, b.op("Less", ids, b.const(int(node.attributes["rows"]), np.int32))
    )
    safe = b.op("Where", valid, ids, zero)
    if node.attributes["kind"] == "fp16":
        row = b.cast(b.op("Gather", "table", safe), "float32")
    else:
        row = _packed_row(b, node, safe)
    hidden = b.op("Where", b.unsqueeze(valid, 1), row, b.const(0.0))
    if has(node, "mask_embeddings"):
        # -1-i is ~i: what a negative id names
        mask = b.op("BitwiseNot", ids)
        masks = b.cast(b.op("Shape", "mask_embeddings", start=0, end=1), "int32")
        is_mask = b.op("And", b.op("GreaterOrEqual", mask, zero), b.op("Less", mask, masks))
        mask_row = b.op("Gather", "mask_embeddings", b.op("Where", is_mask, mask, zero))
        hidden = b.op("Where", b.unsqueeze(is_mask, 1), mask_row, hidden)
    b.give("hidden", hidden)
