"""The model in fp32 NumPy, streamed layer by layer from its checkpoint: the yardstick of an
export's quality, and what calibration observes.

It shares nothing with the operators but the checkpoint's names and the rotary table, so it also
tells whether a graph computes the right function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from .checkpoints.base import EMBEDDING, FINAL_NORM, HEAD, MASK_EMBEDDINGS, Checkpoint, Stack
from .checkpoints.rotary import rotary_table

Floats = NDArray[np.float32]

# (layer, linear, its input [n, K], squared norm of each of its columns [K])
Observer = Callable[[int, str, Floats, NDArray[np.float64]], None]

_BLOCK_WEIGHTS = 1 << 21
_HEAD_BLOCK = 64


def reference_logits(
    checkpoint: Checkpoint, windows: Sequence[Sequence[int]], *, int8_activations: bool = False
) -> Iterator[Floats]:
    """Logits fp32 [n, vocabulary] of every position of each token window, in blocks of up to 64
    rows.

    Each window is a text of its own, from position 0; a token -1-i is row i of the mask embeddings.
    ``int8_activations`` rounds the input of every linear to per-token int8, as the operators do, so
    that this cost can be told from the weights'.
    """
    config = checkpoint.config
    hidden = run_layers(checkpoint, windows, int8_activations=int8_activations)
    name = EMBEDDING if config.tied else HEAD
    table = np.concatenate(
        [rows for _, rows in checkpoint.blocks(_table(checkpoint, name), _HEAD_BLOCK * 64)]
    )
    first = 0
    for window in windows:
        end = first + len(window)
        while first < end:
            last = min(first + _HEAD_BLOCK, end)
            yield hidden[first:last] @ table.T
            first = last


def run_layers(
    checkpoint: Checkpoint,
    windows: Sequence[Sequence[int]],
    *,
    int8_activations: bool = False,
    observe: Observer | None = None,
    on_layer: Callable[[], None] = lambda: None,
) -> Floats:
    """What the head reads: the normed last hidden rows of all windows end to end, fp32 [n, K].

    ``observe`` is called with the input of every linear of every layer. Weights pass by in blocks
    of rows, so memory does not grow with the model.
    """
    config = checkpoint.config
    quantise = _int8 if int8_activations else (lambda x: x)
    rotary = rotary_table(config.rope, config.head_dim, 0, max(map(len, windows)))
    hidden = _embed(checkpoint, [token for window in windows for token in window])
    for index in range(config.num_layers):
        tensors = checkpoint.family.layer(config, index)
        vectors = {name: checkpoint.vectors(stack) for name, stack in tensors.vectors.items()}
        linear = partial(_linear_of, checkpoint, index, tensors.linears, quantise, observe)
        qkv = linear("qkv", _rms_norm(hidden, vectors["attention_norm"], config.epsilon))
        attended, first = [], 0
        for window in windows:
            rows = slice(first, first + len(window))
            attended.append(_attention(checkpoint, qkv[rows], vectors, rotary))
            first += len(window)
        hidden = hidden + linear("o", np.concatenate(attended))
        normed = _rms_norm(hidden, vectors["mlp_norm"], config.epsilon)
        gate, up = np.split(linear("gate_up", normed), 2, axis=1)
        hidden = hidden + linear("down", gate / (1 + np.exp(-gate)) * up)
        on_layer()
    norm = checkpoint.vectors(Stack(((FINAL_NORM, config.hidden_size),)))
    return quantise(_rms_norm(hidden, norm, config.epsilon))


def _linear_of(
    checkpoint: Checkpoint,
    index: int,
    linears: Mapping[str, Stack],
    quantise: Callable[[Floats], Floats],
    observe: Observer | None,
    name: str,
    x: Floats,
) -> Floats:
    x = quantise(x)
    out, squares = _linear(checkpoint, linears[name], x)
    if observe:
        observe(index, name, x, squares)
    return out


def column_squares(checkpoint: Checkpoint, stack: Stack) -> NDArray[np.float64]:
    """Squared norm of every column of a matrix, float64 [K]."""
    squares = np.zeros(stack.width)
    for _, rows in checkpoint.blocks(stack, _block_rows(stack)):
        squares += np.square(rows, dtype=np.float64).sum(axis=0)
    return squares


def _table(checkpoint: Checkpoint, name: str) -> Stack:
    return Stack(((name, checkpoint.config.vocab_size),), checkpoint.config.hidden_size)


def _block_rows(stack: Stack) -> int:
    return max(_BLOCK_WEIGHTS // stack.width, 1)


def _embed(checkpoint: Checkpoint, tokens: list[int]) -> Floats:
    unique, inverse = np.unique(tokens, return_inverse=True)
    rows = [_row(checkpoint, int(token)) for token in unique]
    return np.concatenate(rows)[inverse]


def _row(checkpoint: Checkpoint, token: int) -> Floats:
    if token < 0:
        return checkpoint.tensor_rows(MASK_EMBEDDINGS, -1 - token, -token)
    return checkpoint.tensor_rows(EMBEDDING, token, token + 1)


def _linear(checkpoint: Checkpoint, stack: Stack, x: Floats) -> tuple[Floats, NDArray[np.float64]]:
    out = np.empty((len(x), stack.rows), np.float32)
    squares = np.zeros(stack.width)
    for first, rows in checkpoint.blocks(stack, _block_rows(stack)):
        out[:, first : first + len(rows)] = x @ rows.T
        squares += np.square(rows).sum(axis=0, dtype=np.float64)
    return out, squares


def _rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    mean_square = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    return np.asarray(x / np.sqrt(mean_square + np.float32(epsilon)) * weight, np.float32)


def _int8(x: Floats) -> Floats:
    largest: Floats = np.abs(x).max(axis=1, keepdims=True)
    scale = np.divide(np.maximum(largest, np.float32(1e-10)), 127, dtype=np.float32)
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
