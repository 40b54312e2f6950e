"""docs/numerics.md in float64 NumPy, written from its rules and from nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
F64 = np.float64

# Half of a code, and what an fp32 value may be off before it is rounded ("Bounds between engines").
CODE_BOUND = 0.5 + 1e-3
KV_BOUND = 0.5 + 1e-4
HIDDEN_BOUND = 1e-5
PROBABILITY_BOUND = 1e-4


def f32(value: float) -> float:
    """``value`` as an fp32 attribute or constant holds it."""
    return float(np.float32(value))


def quantise(x: Array) -> tuple[Array, Array]:
    """Rule 3: the values [M, K] before they are rounded, and the scales [M]."""
    amax = np.maximum(np.abs(x).max(axis=-1), 1e-10)
    return x * (127 / amax)[:, None], amax / 127


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """Rule 4 over the last axis."""
    mean = (x.astype(F64) ** 2).mean(axis=-1, keepdims=True)
    return x / np.sqrt(mean + f32(epsilon)) * weight.astype(F64)


def group_dots(codes: Array, weight: Array, group_size: int) -> Array:
    """Rule 5: int64[M, N, G] of activation codes [M, K] and weight codes [N, K]."""
    width = codes.shape[1]
    starts = range(0, -(-width // 64) * 64, group_size or width)
    blocks = [slice(start, start + (group_size or width)) for start in starts]
    c, w = codes.astype(np.int64), weight.astype(np.int64)
    return np.stack([c[:, block] @ w[:, block].T for block in blocks], axis=2)


def linear(
    codes: Array, act_scale: Array, weight: Array, scales: Array, group_size: int
) -> tuple[Array, Array]:
    """Rule 5 in float64, and the bound on what an fp32 engine may be off. Scales [N, G]."""
    terms = group_dots(codes, weight, group_size) * scales.astype(F64)
    y = terms.sum(axis=2) * act_scale[:, None]
    bound = 1e-6 * terms.shape[2] * np.abs(terms).sum(axis=2) * act_scale[:, None]
    return y, bound


def gate(gate_up: Array, activation: str) -> Array:
    """Rule 8 before the sub-norm."""
    g, up = np.split(gate_up.astype(F64), 2, axis=1)
    if activation == "silu":
        return g / (1 + np.exp(-np.maximum(g, -700))) * up
    return np.maximum(g, 0) ** 2 * up


def rotate(x: Array, table: Array) -> Array:
    """Rule 9: x [M, heads, D], table rows [M, D]."""
    half = x.shape[2] // 2
    cos, sin = (t[:, None].astype(F64) for t in np.split(table, 2, axis=1))
    x1, x2 = x[..., :half], x[..., half:]
    return np.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=2)


def visible(mask: Array) -> Array:
    """bool [M, M]: which window slots each row attends."""
    m = mask.shape[0]
    slot = np.arange(m)
    return (mask.view(np.uint32)[:, slot // 32] >> (slot % 32).astype(np.uint32) & 1).astype(bool)


def attention(
    q: Array, k: Array, v: Array, history_length: int, mask: Array, softmax_scale: float
) -> Array:
    """Rule 11 with one softmax, float64 [M, H*D].

    q [M, H, D]; k and v [history_length + M, Hkv, D], the values that their stored form says.
    """
    m, heads, dim = q.shape
    past = np.ones((m, history_length), bool)
    seen = np.concatenate([past, visible(mask)], axis=1)
    out = np.zeros((m, heads, dim))
    for head in range(heads):
        of = head // (heads // k.shape[1])
        score = q[:, head] @ k[:, of].T * f32(softmax_scale)
        score[~seen] = -np.inf
        e = np.exp(score - score.max(axis=1, keepdims=True))
        out[:, head] = e @ v[:, of] / e.sum(axis=1, keepdims=True)
    return out.reshape(m, heads * dim)
