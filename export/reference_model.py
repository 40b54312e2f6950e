"""The model in fp32 NumPy, layer by layer from its checkpoint: the yardstick of an export's
quality.

It shares nothing with the operators but the checkpoint's names and the rotary table, so it also
tells whether a graph computes the right function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .checkpoints.base import EMBEDDING, FINAL_NORM, HEAD, Checkpoint, Stack
from .checkpoints.rotary import rotary_table

Floats = NDArray[np.float32]

_HEAD_BLOCK = 64


def reference_logits(
    checkpoint: Checkpoint, windows: Sequence[Sequence[int]], *, int8_activations: bool = False
) -> Iterator[Floats]:
    """Logits fp32 [n, vocabulary] of every position of each token window, in blocks of up to 64
    rows.

    Each window is a text of its own, from position 0. ``int8_activations`` rounds the input of
    every linear to per-token int8, as the operators do, so that this cost can be told from the
    weights'.
    """
    config = checkpoint.config
    longest = max(len(window) for window in windows)
    rotary = rotary_table(config.rope, config.head_dim, 0, longest)
    quantise = _int8 if int8_activations else (lambda x: x)
    table = _matrix(checkpoint, Stack(((EMBEDDING, config.vocab_size),), config.hidden_size))
    hidden = [table[np.asarray(window)] for window in windows]
    if not config.tied:
        del table
    for index in range(config.num_layers):
        tensors = checkpoint.family.layer(config, index)
        linears = {name: _matrix(checkpoint, stack) for name, stack in tensors.linears.items()}
        vectors = {name: checkpoint.vectors(stack) for name, stack in tensors.vectors.items()}
        for i, x in enumerate(hidden):
            normed = quantise(_rms_norm(x, vectors["attention_norm"], config.epsilon))
            qkv = normed @ linears["qkv"].T
            attended = _attention(checkpoint, qkv, vectors, rotary)
            x = x + quantise(attended) @ linears["o"].T
            normed = quantise(_rms_norm(x, vectors["mlp_norm"], config.epsilon))
            gate, up = np.split(normed @ linears["gate_up"].T, 2, axis=1)
            gated = gate / (1 + np.exp(-gate)) * up
            hidden[i] = x + quantise(gated) @ linears["down"].T
    if not config.tied:
        table = _matrix(checkpoint, Stack(((HEAD, config.vocab_size),), config.hidden_size))
    norm = checkpoint.vectors(Stack(((FINAL_NORM, config.hidden_size),)))
    for x in hidden:
        normed = quantise(_rms_norm(x, norm, config.epsilon))
        for first in range(0, len(normed), _HEAD_BLOCK):
            yield normed[first : first + _HEAD_BLOCK] @ table.T


def _matrix(checkpoint: Checkpoint, stack: Stack) -> Floats:
    return np.concatenate([rows for _, rows in checkpoint.blocks(stack, 4096)])


def _rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(epsilon)) * weight


def _int8(x: Floats) -> Floats:
    scale = np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float32(1e-10)) / np.float32(127)
    return np.rint(x / scale) * scale


def _attention(
    checkpoint: Checkpoint, qkv: Floats, vectors: dict[str, Floats], rotary: Floats
) -> Floats:
    config = checkpoint.config
    n, dim = len(qkv), config.head_dim
    if "qkv_bias" in vectors:
        qkv = qkv + vectors["qkv_bias"]
    heads = qkv.reshape(n, -1, dim).transpose(1, 0, 2)
    q = heads[: config.num_heads]
    k = heads[config.num_heads : config.num_heads + config.num_kv_heads]
    v = heads[config.num_heads + config.num_kv_heads :]
    if "q_norm" in vectors:
        q = _rms_norm(q, vectors["q_norm"], config.epsilon)
        k = _rms_norm(k, vectors["k_norm"], config.epsilon)
    q, k = _rotate(q, rotary[:n]), _rotate(k, rotary[:n])
    ratio = config.num_heads // config.num_kv_heads
    future = np.triu(np.full((n, n), -np.inf, np.float32), 1)
    out = np.empty((n, config.num_heads, dim), np.float32)
    for head in range(config.num_heads):
        scores = q[head] @ k[head // ratio].T / np.sqrt(np.float32(dim)) + future
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights @ v[head // ratio] / weights.sum(axis=1, keepdims=True)
    return out.reshape(n, -1)


def _rotate(x: Floats, rotary: Floats) -> Floats:
    cos, sin = np.split(rotary, 2, axis=1)
    first, second = np.split(x, 2, axis=2)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2)
