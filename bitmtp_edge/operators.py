"""The seven operators: their schemas and shape rules, the vocabulary of every graph and engine.

A graph node is a :class:`Node`; what its inputs, outputs and attributes mean is stated once, here.
The arithmetic is in docs/numerics.md, the layouts in :mod:`bitmtp_edge.layout`, the C records in
plugins/include/bitmtp/abi.h, the reference bodies in :mod:`bitmtp_edge.export.operators`.

Symbols in shapes: M window width, h head slots, K hidden size, N output rows, F intermediate size,
V vocabulary, H and Hkv heads, D head dimension, C history capacity, P mask embeddings, T =
ceil(rows/8) tiles, G scale groups, k top_k; ``pad(x)`` rounds up to 64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .layout import padded_width

DOMAIN = "bitmtp"
PLUGIN_VERSION = "1"

Attributes = Mapping[str, int | float | str]
Spec = tuple[str, tuple[int, ...]]  # dtype ("int32", "float16", "float32") and shape


@dataclass(frozen=True)
class Port:
    """One input or output: its name, dtype and shape (in the symbols above)."""

    name: str
    dtype: str
    shape: str
    optional: bool = False


@dataclass(frozen=True)
class Node:
    """One operator call in a graph. Absent optional inputs and outputs are empty strings."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes = field(default_factory=dict)

    def input(self, port: str) -> str:
        """Tensor name at the input ``port``, or "" where it is absent."""
        names = [p.name for p in OPERATORS[self.op].inputs]
        index = names.index(port)
        return self.inputs[index] if index < len(self.inputs) else ""

    def output(self, port: str) -> str:
        """Tensor name at the output ``port``, or "" where it is absent."""
        names = [p.name for p in OPERATORS[self.op].outputs]
        index = names.index(port)
        return self.outputs[index] if index < len(self.outputs) else ""


@dataclass(frozen=True)
class Operator:
    """Schema of one operator. ``output_specs(attributes, M, h)`` gives dtype and shape of every
    output in order."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    attributes: Mapping[str, type]
    output_specs: Callable[[Attributes, int, int], list[Spec]]


def _int(attributes: Attributes, name: str) -> int:
    return int(attributes[name])


def _codes(width: int, m: int) -> list[Spec]:
    return [("int32", (m, padded_width(width) // 4)), ("float32", (m,))]


def kv_row_specs(attributes: Attributes, slots: int) -> list[Spec]:
    """dtype and shape of the KV planes of one layer with ``slots`` rows: rows, refinement, scale
    (fp16 kind: rows alone)."""
    heads, dim = 2 * _int(attributes, "num_kv_heads"), _int(attributes, "head_dim")
    if attributes["kv"] == "fp16":
        return [("float16", (slots, heads * dim))]
    plane: Spec = ("int32", (slots, heads * dim // 8))
    return [plane, plane, ("float16", (slots, heads))]


def _attention_specs(attributes: Attributes, m: int, h: int) -> list[Spec]:
    width = _int(attributes, "num_heads") * _int(attributes, "head_dim")
    return _codes(width, m) + kv_row_specs(attributes, m)


def _head_specs(attributes: Attributes, m: int, h: int) -> list[Spec]:
    k = _int(attributes, "top_k")
    return [("int32", (h, k)), ("float32", (h, k)), ("float32", (h, _int(attributes, "rows")))]


_WEIGHT = {"kind": str, "rows": int, "width": int, "group_size": int}
_LINEAR = {"rows": int, "width": int, "group_size": int}
_SCALES = "[T, G, 8]"
_CODES = (Port("codes", "int32", "[M, pad(K)/4]"), Port("act_scale", "float32", "[M]"))

OPERATORS: dict[str, Operator] = {
    op.name: op
    for op in (
        # ``table`` by kind: fp16 [V, K]; int8 int32 [T, pad(K)/4, 8]; ternary [T, pad(K)/16, 8];
        # dual, the base plane [T, pad(K)/8, 8].
        Operator(
            "TokenEmbedding",
            (
                Port("token_ids", "int32", "[M]"),
                Port("table", "int32|float16", "by kind"),
                Port("scales", "float16", _SCALES, optional=True),
                Port("refinement", "int32", "[T, pad(K)/8, 8]", optional=True),
                Port("mask_embeddings", "float32", "[P, K]", optional=True),
            ),
            (Port("hidden", "float32", "[M, K]"),),
            _WEIGHT,
            lambda a, m, h: [("float32", (m, _int(a, "width")))],
        ),
        Operator(
            "RmsNormQuant",
            (Port("hidden", "float32", "[M, K]"), Port("weight", "float32", "[K]")),
            _CODES,
            {"width": int, "epsilon": float},
            lambda a, m, h: _codes(_int(a, "width"), m),
        ),
        Operator(
            "TernaryLinear",
            (
                *_CODES,
                Port("packed", "int32", "[T, pad(K)/16, 8]"),
                Port("scales", "float16", _SCALES),
                Port("residual", "float32", "[M, N]", optional=True),
            ),
            (Port("out", "float32", "[M, N]"),),
            _LINEAR,
            lambda a, m, h: [("float32", (m, _int(a, "rows")))],
        ),
        # The role is the presence of ``refinement``: absent W4A8 (draft), present W8A8 (verify).
        Operator(
            "DualPlaneLinear",
            (
                *_CODES,
                Port("base", "int32", "[T, pad(K)/8, 8]"),
                Port("scales", "float16", _SCALES),
                Port("refinement", "int32", "[T, pad(K)/8, 8]", optional=True),
                Port("residual", "float32", "[M, N]", optional=True),
            ),
            (Port("out", "float32", "[M, N]"),),
            _LINEAR,
            lambda a, m, h: [("float32", (m, _int(a, "rows")))],
        ),
        # ``kv`` is "nested" or "fp16"; the fp16 kind has ``history`` and ``new_rows`` in fp16 and
        # none of the nested ports.
        Operator(
            "NestedKVAttention",
            (
                Port("qkv", "float32", "[M, (H+2*Hkv)*D]"),
                Port("positions", "int32", "[M]"),
                Port("mask", "int32", "[M, ceil(M/32)]"),
                Port("history_length", "int32", "[1]"),
                Port("rotary", "float32", "[positions, D]"),
                Port("history", "int32|float16", "[C, 2*Hkv*D/8] | [C, 2*Hkv*D]"),
                Port("history_refinement", "int32", "[C, 2*Hkv*D/8]", optional=True),
                Port("history_scale", "float16", "[C, 2*Hkv]", optional=True),
                Port("kv4_length", "int32", "[1]", optional=True),
                Port("qkv_bias", "float32", "[(H+2*Hkv)*D]", optional=True),
                Port("q_norm", "float32", "[D]", optional=True),
                Port("k_norm", "float32", "[D]", optional=True),
                Port("sub_norm", "float32", "[H*D]", optional=True),
            ),
            (
                Port("codes", "int32", "[M, pad(H*D)/4]"),
                Port("scale", "float32", "[M]"),
                Port("new_rows", "int32|float16", "[M, as history]"),
                Port("new_refinement", "int32", "[M, 2*Hkv*D/8]", optional=True),
                Port("new_scale", "float16", "[M, 2*Hkv]", optional=True),
            ),
            {
                "num_heads": int,
                "num_kv_heads": int,
                "head_dim": int,
                "kv": str,
                "softmax_scale": float,
                "epsilon": float,
            },
            _attention_specs,
        ),
        # ``activation`` is "silu" or "relu2".
        Operator(
            "GatedActQuant",
            (
                Port("gate_up", "float32", "[M, 2F]"),
                Port("sub_norm", "float32", "[F]", optional=True),
            ),
            _CODES,
            {"width": int, "activation": str, "epsilon": float},
            lambda a, m, h: _codes(_int(a, "width"), m),
        ),
        Operator(
            "GreedyHead",
            (
                *_CODES,
                Port("head_slots", "int32", "[h]"),
                Port("table", "int32|float16", "by kind"),
                Port("scales", "float16", _SCALES, optional=True),
                Port("refinement", "int32", "[T, pad(K)/8, 8]", optional=True),
            ),
            (
                Port("token_ids", "int32", "[h, k]"),
                Port("probability", "float32", "[h, k]"),
                Port("logits", "float32", "[h, V]", optional=True),
            ),
            {**_WEIGHT, "top_k": int},
            _head_specs,
        ),
    )
}

# Names of the graph's own inputs and outputs, the same in both roles.
STEP_INPUTS = ("token_ids", "positions", "mask", "history_length", "kv4_length", "head_slots")
STEP_OUTPUTS = ("next_token_ids", "probability", "logits")


def kv_names(layer: int) -> dict[str, str]:
    """Tensor names of a layer's KV planes: attention port -> graph input (history*) or graph output
    (new_*)."""
    ports = (
        "history",
        "history_refinement",
        "history_scale",
        "new_rows",
        "new_refinement",
        "new_scale",
    )
    return {port: f"layers.{layer}.{port}" for port in ports}
