"""NestedKVAttention: rotary embedding, the window's own K/V rows, attention under the mask.

One softmax over all keys: the same real function as the chunks of rule 11, which only fix an order.
"""

from __future__ import annotations

import numpy as np

from bitmtp_edge.layout import bit_offsets
from bitmtp_edge.operators import Node

from .common import (
    Body,
    give_quantised,
    has,
    number_tag,
    pack,
    rms_norm,
    round_codes,
    unpack,
)


def signature(node: Node) -> str:
    a = node.attributes
    tag = f"attn_{a['num_heads']}q{a['num_kv_heads']}kv_d{a['head_dim']}_{a['kv']}"
    tag += f"_s{number_tag(float(a['softmax_scale']))}"
    if any(has(node, port) for port in ("q_norm", "k_norm", "sub_norm")):
        tag += f"_e{number_tag(float(a['epsilon']))}"
    options = {
        "kv4_length": "kv4",
        "qkv_bias": "bias",
        "q_norm": "qnorm",
        "k_norm": "knorm",
        "sub_norm": "sub",
    }
    return tag + "".join(f"_{short}" for port, short in options.items() if has(node, port))


class _Attention:
    """The steps of one body. S is history_length + M: the keys, history first."""

    def __init__(self, b: Body, node: Node) -> None:
        self.b, self.node = b, node
        a = node.attributes
        self.heads, self.kv_heads = int(a["num_heads"]), int(a["num_kv_heads"])
        self.dim = int(a["head_dim"])
        self.softmax_scale, self.epsilon = float(a["softmax_scale"]), float(a["epsilon"])

    def projections(self) -> tuple[str, str]:
        """q fp32[M, H, D], and k beside v fp32[M, 2*Hkv, D]: after bias, norms and rotary."""
        b, heads, kv_heads, dim = self.b, self.heads, self.kv_heads, self.dim
        x = b.op("Add", "qkv", "qkv_bias") if has(self.node, "qkv_bias") else "qkv"
        x = b.reshape(x, 0, heads + 2 * kv_heads, dim)
        q = b.columns(x, 0, heads)
        k = b.columns(x, heads, heads + kv_heads)
        v = b.columns(x, heads + kv_heads, heads + 2 * kv_heads)
        if has(self.node, "q_norm"):
            q = rms_norm(b, q, "q_norm", dim, self.epsilon)
        if has(self.node, "k_norm"):
            k = rms_norm(b, k, "k_norm", dim, self.epsilon)
        table = b.unsqueeze(b.op("Gather", "rotary", "positions"), 1)
        cos, sin = b.columns(table, 0, dim // 2, 2), b.columns(table, dim // 2, dim, 2)

        def rotate(y: str) -> str:
            y1, y2 = b.columns(y, 0, dim // 2, 2), b.columns(y, dim // 2, dim, 2)
            first = b.op("Sub", b.op("Mul", y1, cos), b.op("Mul", y2, sin))
            second = b.op("Add", b.op("Mul", y2, cos), b.op("Mul", y1, sin))
            return b.op("Concat", first, second, axis=2)

        return rotate(q), b.op("Concat", rotate(k), v, axis=1)

    def history(self, port: str) -> str:
        """The valid rows of a history plane."""
        zero = self.b.const([0], np.int32)
        return self.b.op("Slice", port, zero, "history_length", zero)

    def _nibbles(self, words: str) -> str:
        """fp32[slots, 2*Hkv, D] of the unsigned codes of a plane."""
        codes = unpack(self.b, words, bit_offsets(4), 4)
        return self.b.reshape(self.b.cast(codes, "float32"), -1, 2 * self.kv_heads, self.dim)

    def nested_rows(self, kv: str) -> tuple[str, str]:
        """Rule 10: gives the new planes; returns codes fp32[S, 2*Hkv, D] and scales
        fp32[S, 2*Hkv, 1] of all keys."""
        b = self.b
        amax = b.reduce("ReduceMax", b.op("Abs", kv))
        stored = b.cast(b.op("Max", b.op("Div", amax, b.const(7.0)), b.const(2.0**-14)), "float16")
        scale = b.cast(stored, "float32")
        inverse = b.op("Div", b.const(1.0), scale)
        base = round_codes(b, b.op("Mul", kv, inverse), -7, 7)
        rest = b.op("Sub", kv, b.op("Mul", base, scale))
        fine = b.op("Mul", rest, b.op("Mul", b.const(16.0), inverse))
        refinement = round_codes(b, fine, -8, 7)

        def plane(codes: str) -> str:
            unsigned = b.cast(b.op("Add", codes, b.const(8.0)), "int32")
            return pack(
                b, b.reshape(unsigned, 0, 2 * self.kv_heads * self.dim // 8, 8), bit_offsets(4), 4
            )

        b.give("new_rows", plane(base))
        b.give("new_refinement", plane(refinement))
        b.give("new_scale", b.reshape(stored, 0, 2 * self.kv_heads))

        eight, sixteen = b.const(8.0), b.const(16.0)
        old_base = b.op("Sub", self._nibbles(self.history("history")), eight)
        old_refinement = b.op("Sub", self._nibbles(self.history("history_refinement")), eight)
        if has(self.node, "kv4_length"):
            # KV4 is KV8 with r = 0.
            scalar = b.reshape("history_length")
            slot = b.op("Range", b.const(0, np.int32), scalar, b.const(1, np.int32))
            is_kv4 = b.reshape(b.op("Less", slot, "kv4_length"), -1, 1, 1)
            old_refinement = b.op("Where", is_kv4, b.const(0.0), old_refinement)
        old = b.op("Add", b.op("Mul", old_base, sixteen), old_refinement)
        new = b.op("Add", b.op("Mul", base, sixteen), refinement)
        old_scale = b.unsqueeze(b.cast(self.history("history_scale"), "float32"), 2)
        scales = b.op("Mul", b.op("Concat", old_scale, scale, axis=0), b.const(0.0625))
        return b.op("Concat", old, new, axis=0), scales

    def fp16_rows(self, kv: str) -> str:
        """Gives the new rows; returns fp32[S, 2*Hkv, D] of all keys."""
        b = self.b
        stored = b.reshape(b.cast(kv, "float16"), 0, -1)
        b.give("new_rows", stored)
        rows = b.op("Concat", self.history("history"), stored, axis=0)
        return b.reshape(b.cast(rows, "float32"), -1, 2 * self.kv_heads, self.dim)

    def visible(self) -> str:
        """bool[M, S]: all of history, and the window's slots by the mask."""
        b = self.b
        m = b.op("Shape", "positions")
        bits = b.reshape(b.cast(unpack(b, "mask", range(32), 1), "int32"), 0, -1)
        window = b.op("Slice", bits, b.ints(0), m, b.ints(1))
        past = b.op("Concat", m, b.cast("history_length", "int64"), axis=0)
        ones = b.op("Expand", b.const(1, np.int32), past)
        return b.op("Equal", b.op("Concat", ones, window, axis=1), b.const(1, np.int32))

    def attend(self, q: str, rows: str, scales: str | None) -> str:
        """fp32[M, H*D]. Each K/V head serves rep = H/Hkv query heads, which lie side by side."""
        b, kv_heads, dim = self.b, self.kv_heads, self.dim
        rep = self.heads // kv_heads

        def side(first: int, x: str, perm: list[int]) -> str:
            return b.op("Transpose", b.columns(x, first, first + kv_heads), perm=perm)

        q = b.op("Transpose", q, perm=[1, 0, 2])
        q = b.reshape(q, kv_heads, -1, dim)  # [Hkv, rep*M, D]
        score = b.op("MatMul", q, side(0, rows, [1, 2, 0]))
        if scales:
            score = b.op("Mul", score, side(0, scales, [1, 2, 0]))
        score = b.op("Mul", score, b.const(self.softmax_scale))
        m = b.op("Shape", "positions")
        shape = b.op("Concat", b.ints(kv_heads, rep), m, b.ints(-1), axis=0)
        score = b.op("Reshape", score, shape)
        score = b.op("Where", self.visible(), score, b.const(-np.inf))
        e = b.op("Exp", b.op("Sub", score, b.reduce("ReduceMax", score)))
        total = b.reduce("ReduceSum", e)  # [Hkv, rep, M, 1]
        if scales:
            e = b.op("Mul", e, b.unsqueeze(side(kv_heads, scales, [1, 2, 0]), 1))
        values = b.unsqueeze(side(kv_heads, rows, [1, 0, 2]), 1)
        result = b.op("Div", b.op("MatMul", e, values), total)  # [Hkv, rep, M, D]
        result = b.op("Transpose", result, perm=[2, 0, 1, 3])
        return b.reshape(result, 0, self.heads * dim)


def body(b: Body, node: Node) -> None:
    attention = _Attention(b, node)
    q, kv = attention.projections()
    if node.attributes["kv"] == "nested":
        rows, scales = attention.nested_rows(kv)
        y = attention.attend(q, rows, scales)
    else:
        y = attention.attend(q, attention.fp16_rows(kv), None)
    width = attention.heads * attention.dim
    if has(node, "sub_norm"):
        y = rms_norm(b, y, "sub_norm", width, attention.epsilon)
    give_quantised(b, y, width, "scale")
