"""A random two-layer model as CPU operator calls, one after the other: a step without an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.operators import Attributes

from .attention_case import Shape
from .harness import Arrays, make_node, run_cpu
from .weights import random_weight

Array = NDArray[Any]

LAYERS = 2
VOCABULARY = 601
WIDTH = 200
INNER = 328
HISTORY_OF = {
    "new_rows": "history",
    "new_refinement": "history_refinement",
    "new_scale": "history_scale",
}


@dataclass(frozen=True)
class Window:
    """Token slots; ``capacity`` is that of the segment whose first ``start`` rows are valid."""

    token_ids: Array
    positions: Array
    mask: Array
    start: int
    capacity: int


@dataclass(frozen=True)
class Result:
    """Per slot: the head's outputs, the residual stream, and every layer's new KV rows by the
    history port that they go to."""

    head: Arrays
    hidden: Array
    kv: list[Arrays]

    def bits(self, slot: int) -> bytes:
        """All that belongs to one slot."""
        parts = [*self.head.values(), self.hidden, *(x for kv in self.kv for x in kv.values())]
        return b"".join(x[slot].tobytes() for x in parts)


class SmallModel:
    """W8A8 in groups of 64, an int8 head; ``shape`` is that of its attention."""

    def __init__(self, seed: np.random.Generator, shape: Shape, positions: int) -> None:
        self._shape = shape
        self._attention = shape.parameters(seed, positions)
        q_and_kv = (shape.heads + 2 * shape.kv_heads) * shape.dim
        self._sizes = {
            "qkv": (q_and_kv, WIDTH),
            "o": (WIDTH, shape.heads * shape.dim),
            "gate_up": (2 * INNER, WIDTH),
            "down": (WIDTH, INNER),
        }
        self._layers: list[dict[str, Arrays]] = []
        for _ in range(LAYERS):
            layer = {}
            for name, (rows, width) in self._sizes.items():
                scale = seed.uniform(0.5, 1, (rows, 1)) / (4 * width**0.5)
                tensors = dict(random_weight(seed, "w8", rows, width, 64, scale).tensors)
                layer[name] = {"base": tensors.pop("table"), **tensors}
            self._layers.append(layer)
        scale = np.full((VOCABULARY, 1), 0.002)
        self._table = random_weight(seed, "int8", VOCABULARY, WIDTH, 0, scale).tensors
        self._norm = seed.uniform(0.5, 1.5, WIDTH).astype(np.float32)

    def step(self, window: Window, history: list[Arrays], threads: int) -> Result:
        """One verify step with all slots in the head. ``history`` has a layer's valid rows."""
        m = window.token_ids.shape[0]
        table: Attributes = {
            "kind": "int8",
            "rows": VOCABULARY,
            "width": WIDTH,
            "group_size": 0,
        }

        def call(op: str, attributes: Attributes, inputs: Arrays, *outputs: str) -> Arrays:
            node = make_node(op, attributes, (*inputs, *outputs))
            return run_cpu(node, inputs, m, m, threads=threads)

        def norm(x: Array) -> Arrays:
            inputs = {"hidden": x, "weight": self._norm}
            return call("RmsNormQuant", {"width": WIDTH, "epsilon": 1e-5}, inputs)

        def linear(layer: dict[str, Arrays], name: str, x: Arrays, residual: Arrays) -> Array:
            rows, width = self._sizes[name]
            attributes = {"rows": rows, "width": width, "group_size": 64}
            return call("DualPlaneLinear", attributes, {**x, **layer[name], **residual})["out"]

        ids = {"token_ids": window.token_ids}
        hidden = call("TokenEmbedding", table, {**ids, **self._table})["hidden"]
        kv = []
        for layer, past in zip(self._layers, history, strict=True):
            inputs = {
                "qkv": linear(layer, "qkv", norm(hidden), {}),
                "positions": window.positions,
                "mask": window.mask,
                "history_length": np.array([window.start], np.int32),
                **self._attention,
                **_segment(past, window),
            }
            outputs = [port for port in HISTORY_OF if HISTORY_OF[port] in past]
            made = call("NestedKVAttention", self._shape.attributes, inputs, *outputs)
            kv.append({HISTORY_OF[port]: made[port] for port in outputs})
            x = {"codes": made["codes"], "act_scale": made["scale"]}
            hidden = linear(layer, "o", x, {"residual": hidden})
            gate_up = {"gate_up": linear(layer, "gate_up", norm(hidden), {})}
            attributes = {"width": INNER, "activation": "silu", "epsilon": 1e-5}
            x = call("GatedActQuant", attributes, gate_up)
            hidden = linear(layer, "down", x, {"residual": hidden})
        head_inputs = {**norm(hidden), "head_slots": np.arange(m, dtype=np.int32), **self._table}
        head = call("GreedyHead", {**table, "top_k": 2}, head_inputs, "logits")
        return Result(head, hidden, kv)

    def no_history(self, rows: int) -> list[Arrays]:
        """Room for ``rows`` KV rows in every layer."""
        return [self._shape.history(np.random.default_rng(0), rows, 0) for _ in range(LAYERS)]


def _segment(past: Arrays, window: Window) -> Arrays:
    """The layer's planes with ``window.capacity`` slots, 0xFF above the valid ones."""
    made = {}
    for port, x in past.items():
        plane = np.empty((window.capacity, *x.shape[1:]), x.dtype)
        plane.view(np.uint8).fill(0xFF)
        plane[: window.start] = x[: window.start]
        made[port] = plane
    return made
