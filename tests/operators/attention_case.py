"""Random windows for NestedKVAttention, and what its outputs must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge import layout
from bitmtp_edge.operators import Attributes, Node, kv_row_specs

from . import oracle
from .checks import assert_quantised
from .harness import Arrays, make_node

Array = NDArray[Any]

EPSILON = 1e-5
NESTED_PORTS = ("history_refinement", "history_scale", "new_refinement", "new_scale")


@dataclass(frozen=True)
class Shape:
    """One signature. ``options`` are optional ports beyond those of the KV kind."""

    heads: int
    kv_heads: int
    dim: int
    kv: str
    options: tuple[str, ...] = ()

    @property
    def attributes(self) -> Attributes:
        return {
            "num_heads": self.heads,
            "num_kv_heads": self.kv_heads,
            "head_dim": self.dim,
            "kv": self.kv,
            "softmax_scale": self.dim**-0.5,
            "epsilon": EPSILON,
        }

    def node(self) -> Node:
        ports = self.options + (NESTED_PORTS if self.kv == "nested" else ())
        return make_node("NestedKVAttention", self.attributes, ports)

    def parameters(self, g: np.random.Generator, rotary_rows: int) -> Arrays:
        """What stays the same from window to window: the rotary table, biases and norms."""
        heads, dim = self.heads + 2 * self.kv_heads, self.dim
        angle = np.arange(rotary_rows)[:, None] * 1e4 ** (-np.arange(dim // 2) / (dim // 2))
        table = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
        every = {
            "qkv_bias": g.normal(0, 0.5, heads * dim),
            "q_norm": g.uniform(0.5, 1.5, dim),
            "k_norm": g.uniform(0.5, 1.5, dim),
            "sub_norm": g.uniform(0.5, 1.5, self.heads * dim),
        }
        chosen = {port: x for port, x in every.items() if port in self.options}
        return {port: x.astype(np.float32) for port, x in {"rotary": table, **chosen}.items()}

    def history(self, g: np.random.Generator, capacity: int, length: int) -> Arrays:
        """``length`` random rows; the slots above hold 0xFF, NaN in fp16."""
        specs = kv_row_specs(self.attributes, capacity)
        ports = ("history", "history_refinement", "history_scale")
        made = {}
        for port, (dtype, shape) in zip(ports, specs, strict=False):
            rows = np.empty(shape, dtype)
            if dtype == "int32":
                # Nibble 0 of a base would be the code -8, which is never stored.
                nibbles = g.integers(1 if port == "history" else 0, 16, (*shape, 8))
                heads = 2 * self.kv_heads
                rows[:] = layout.pack_kv(nibbles.reshape(capacity, heads, self.dim) - 8)
            elif port == "history_scale":
                rows[:] = 10.0 ** g.uniform(-2, -0.5, shape)
            else:
                rows[:] = g.normal(size=shape)
            rows[length:].view(np.uint8).fill(0xFF)
            made[port] = rows
        return made


def pack_mask(seen: Array) -> Array:
    """int32 [M, ceil(M/32)] of bool [M, M]."""
    m = seen.shape[0]
    bits = np.zeros((m, -(-m // 32) * 32), np.uint8)
    bits[:, :m] = seen
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


def window_shape(g: np.random.Generator, form: str, m: int, start: int) -> tuple[Array, Array]:
    """positions int32[M] and mask of a "causal" window, a "tree", or a "padded" causal window."""
    seen = np.eye(m, dtype=bool)
    used = m - m // 3 if form == "padded" else m
    for slot in range(1, used):
        parent = slot - 1 if form != "tree" else int(g.integers(-1, slot))
        if parent >= 0:
            seen[slot] |= seen[parent]
    positions = start + seen.sum(axis=1) - 1
    return positions.astype(np.int32), pack_mask(seen)


def random_qkv(g: np.random.Generator, shape: Shape, m: int) -> Array:
    """fp32[M, (H+2*Hkv)*D]: head sizes differ by a hundred, and some K/V heads are all zeros."""
    heads = shape.heads + 2 * shape.kv_heads
    x = g.normal(size=(m, heads, shape.dim))
    x[:, shape.heads :] *= 10.0 ** g.uniform(-1.5, 0.5, (m, 2 * shape.kv_heads, 1))
    x[:, shape.heads :][g.random((m, 2 * shape.kv_heads)) < 0.05] = 0
    return x.reshape(m, -1).astype(np.float32)


def _stored(shape: Shape, rows: tuple[Array, ...], kv4_length: int = 0) -> Array:
    """float64 [slots, 2*Hkv, D]: what stored rows say; below ``kv4_length`` without refinement."""
    if shape.kv == "fp16":
        return rows[0].astype(np.float64).reshape(-1, 2 * shape.kv_heads, shape.dim)
    base, refinement = (layout.unpack_kv(p, shape.dim).astype(np.float64) for p in rows[:2])
    refinement[:kv4_length] = 0
    return (16 * base + refinement) * (rows[2].astype(np.float64) / 16)[..., None]


def _assert_stored(shape: Shape, x: Array, new: tuple[Array, ...], label: str) -> None:
    """Rule 10: the stored rows ``new`` are the K/V values ``x`` [M, 2*Hkv, D], rounded."""
    if shape.kv == "fp16":
        off = np.abs(_stored(shape, new) - x)
        half_step = np.spacing(np.abs(x).astype(np.float16)).astype(np.float64) / 2
        # Rotary embedding may cancel: fp32 is exact to the head's size, not to the element's.
        size = np.abs(x).max(axis=-1, keepdims=True)
        assert (off <= half_step + 1e-6 * size).all(), f"{label}: fp16 rows"
        return
    want = np.maximum(np.abs(x).max(axis=-1) / 7, 2.0**-14)
    scale = new[2].astype(np.float64)
    half_step = np.spacing(want.astype(np.float16)).astype(np.float64) / 2
    assert (np.abs(scale - want) <= half_step + 1e-6 * want).all(), f"{label}: KV scales"
    base, refinement = (layout.unpack_kv(p, shape.dim) for p in new[:2])
    steps = x / scale[..., None]
    off = np.abs(base - np.clip(steps, -7, 7)).max()
    assert off <= oracle.KV_BOUND, f"{label}: a base code is {off} from its value"
    off = np.abs(refinement - np.clip((steps - base) * 16, -8, 7)).max()
    assert off <= oracle.KV_BOUND, f"{label}: a refinement code is {off} from its value"


def assert_attention(shape: Shape, inputs: Arrays, outputs: Arrays, label: str) -> None:
    """All outputs are right for ``inputs``. Attention is checked over the K/V rows that the engine
    itself stored, so that a code beside a half is not counted twice."""
    heads, kv_heads = shape.heads, shape.kv_heads
    x = inputs["qkv"].astype(np.float64) + inputs.get("qkv_bias", 0)
    m = x.shape[0]
    x = x.reshape(m, heads + 2 * kv_heads, shape.dim)
    q, k, v = np.split(x, [heads, heads + kv_heads], axis=1)
    if "q_norm" in inputs:
        q = oracle.rms_norm(q, inputs["q_norm"], EPSILON)
    if "k_norm" in inputs:
        k = oracle.rms_norm(k, inputs["k_norm"], EPSILON)
    table = inputs["rotary"][inputs["positions"]]
    q, k = oracle.rotate(q, table), oracle.rotate(k, table)

    def rows(prefix: str, first: str, stop: int) -> tuple[Array, ...]:
        source = inputs if prefix == "history" else outputs
        ports = [first, f"{prefix}_refinement", f"{prefix}_scale"]
        return tuple(source[port][:stop] for port in ports if port in source)

    new = rows("new", "new_rows", m)
    _assert_stored(shape, np.concatenate([k, v], axis=1), new, label)
    start = int(inputs["history_length"][0])
    kv4_length = int(inputs["kv4_length"][0]) if "kv4_length" in inputs else 0
    past = _stored(shape, rows("history", "history", start), kv4_length)
    keys, values = np.split(np.concatenate([past, _stored(shape, new)]), 2, axis=1)
    softmax_scale = float(shape.attributes["softmax_scale"])
    y = oracle.attention(q, keys, values, start, inputs["mask"], softmax_scale)
    if "sub_norm" in inputs:
        y = oracle.rms_norm(y, inputs["sub_norm"], EPSILON)
    before, scale = oracle.quantise(y)
    assert_quantised(outputs, "scale", before, scale, slice(None), label)
