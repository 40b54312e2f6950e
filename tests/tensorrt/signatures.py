"""Every signature of every operator: dtypes and shapes of its tensors, and its plugin fields.

Written from bitmtp_edge/operators.py and docs/numerics.md, apart from the C++ that it tests; the
engines' own records are asked to agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

from bitmtp_edge import layout
from bitmtp_edge.engines.operator_records import DeviceArray, build_call
from bitmtp_edge.operators import OPERATORS, Attributes, Node, Port, Spec, kv_row_specs

Field = tuple[str, int | float | str]

M, H = 5, 3
ROWS, WIDTH = 203, 200  # neither is a multiple of a tile or of a group
CAPACITY, POSITIONS, MASKS = 300, 333, 4
CODE_BITS = {"int8": 8, "ternary": 2, "dual": 4}


@dataclass(frozen=True)
class Signature:
    """A node that uses some of its operator's ports, each tensor named as its port."""

    node: Node

    def __str__(self) -> str:
        """The operator, its words, and the optional ports that are there."""
        words = [str(x) for x in self.node.attributes.values() if isinstance(x, str)]
        optional = [p.name for p in (*self.inputs, *self.outputs) if p.optional]
        return "-".join([self.node.op, *words, *optional])

    @property
    def inputs(self) -> list[Port]:
        return [p for p in OPERATORS[self.node.op].inputs if self.node.input(p.name)]

    @property
    def outputs(self) -> list[Port]:
        return [p for p in OPERATORS[self.node.op].outputs if self.node.output(p.name)]

    def fields(self) -> list[Field]:
        """Name and value of every plugin field, in order."""
        operator = OPERATORS[self.node.op]
        attributes = [(name, self.node.attributes[name]) for name in operator.attributes]
        masks = [
            ("input_ports", _mask(operator.inputs, self.inputs)),
            ("output_ports", _mask(operator.outputs, self.outputs)),
        ]
        return [*attributes, *masks]

    def input_specs(self, m: int = M, h: int = H) -> list[Spec]:
        """Dtype and shape of every input that is there."""
        every = _input_specs(self.node, m, h)
        return [every[port.name] for port in self.inputs]

    def output_specs(self, m: int = M, h: int = H) -> list[Spec]:
        """Dtype and shape of every output that is there."""
        ports = OPERATORS[self.node.op].outputs
        specs = OPERATORS[self.node.op].output_specs(self.node.attributes, m, h)
        found = {port.name: spec for port, spec in zip(ports, specs, strict=False)}
        return [found[port.name] for port in self.outputs]

    def record(self, m: int = M, h: int = H) -> tuple[int, object]:
        """The C record that the engines make of it. UserError where they see another shape."""
        tensors = {}
        for port, (dtype, shape) in zip(self.inputs, self.input_specs(m, h), strict=True):
            tensors[port.name] = DeviceArray(256, dtype, shape)
        for port, (dtype, shape) in zip(self.outputs, self.output_specs(m, h), strict=True):
            tensors[f"{port.name}.out"] = DeviceArray(256, dtype, shape)
        return build_call(self.node, tensors, m, h)


def _mask(ports: tuple[Port, ...], present: list[Port]) -> int:
    return sum(1 << i for i, port in enumerate(ports) if port in present)


def _weight_specs(attributes: Attributes, kind: str) -> dict[str, Spec]:
    rows, width, size = (int(attributes[name]) for name in ("rows", "width", "group_size"))
    if kind == "fp16":
        return {"table": ("float16", (rows, width))}
    packed: Spec = ("int32", layout.packed_shape(rows, width, CODE_BITS[kind]))
    scales: Spec = ("float16", layout.scales_shape(rows, width, size))
    return {
        "table": packed,
        "packed": packed,
        "base": packed,
        "scales": scales,
        "refinement": packed,
    }


def _input_specs(node: Node, m: int, h: int) -> dict[str, Spec]:
    a = node.attributes
    if node.op == "NestedKVAttention":
        heads, kv_heads, dim = (int(a[n]) for n in ("num_heads", "num_kv_heads", "head_dim"))
        width = (heads + 2 * kv_heads) * dim
        planes = ("history", "history_refinement", "history_scale")
        return {
            "qkv": ("float32", (m, width)),
            "positions": ("int32", (m,)),
            "mask": ("int32", (m, -(-m // 32))),
            "history_length": ("int32", (1,)),
            "rotary": ("float32", (POSITIONS, dim)),
            **dict(zip(planes, kv_row_specs(a, CAPACITY), strict=False)),
            "kv4_length": ("int32", (1,)),
            "qkv_bias": ("float32", (width,)),
            "q_norm": ("float32", (dim,)),
            "k_norm": ("float32", (dim,)),
            "sub_norm": ("float32", (heads * dim,)),
        }
    width = int(a["width"])
    kind = {"TernaryLinear": "ternary", "DualPlaneLinear": "dual"}.get(node.op, a.get("kind"))
    weight = {} if kind is None else _weight_specs(a, str(kind))
    return {
        "token_ids": ("int32", (m,)),
        "mask_embeddings": ("float32", (MASKS, width)),
        "hidden": ("float32", (m, width)),
        "weight": ("float32", (width,)),
        "codes": ("int32", (m, layout.padded_width(width) // 4)),
        "act_scale": ("float32", (m,)),
        "residual": ("float32", (m, int(a.get("rows", 0)))),
        "head_slots": ("int32", (h,)),
        "gate_up": ("float32", (m, 2 * width)),
        "sub_norm": ("float32", (width,)),
        **weight,
    }


def _node(op: str, attributes: Attributes, optional: tuple[str, ...]) -> Signature:
    schema = OPERATORS[op]

    def there(port: Port) -> bool:
        return not port.optional or port.name in optional

    inputs = tuple(p.name if there(p) else "" for p in schema.inputs)
    outputs = tuple(f"{p.name}.out" if there(p) else "" for p in schema.outputs)
    return Signature(Node(op, op.lower(), inputs, outputs, attributes))


def _subsets(ports: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for count in range(len(ports) + 1):
        yield from combinations(ports, count)


def _kinds() -> Iterator[tuple[Attributes, tuple[str, ...]]]:
    """Attributes of a weight with a kind, and the ports that these bring."""
    for kind in ("fp16", *CODE_BITS):
        for size in (0,) if kind == "fp16" else (0, 64, 128):
            attributes = {"kind": kind, "rows": ROWS, "width": WIDTH, "group_size": size}
            yield attributes, () if kind == "fp16" else ("scales",)
            if kind == "dual":
                yield attributes, ("scales", "refinement")


def signatures() -> Iterator[Signature]:
    """Every set of attributes that changes a port, with every set of optional ports."""
    for (attributes, ports), masks in product(_kinds(), _subsets(("mask_embeddings",))):
        yield _node("TokenEmbedding", attributes, (*ports, *masks))
    yield _node("RmsNormQuant", {"width": WIDTH, "epsilon": 1e-5}, ())
    for size in (0, 64, 128):
        attributes = {"rows": ROWS, "width": WIDTH, "group_size": size}
        for optional in _subsets(("residual",)):
            yield _node("TernaryLinear", attributes, optional)
        for optional in _subsets(("refinement", "residual")):
            yield _node("DualPlaneLinear", attributes, optional)
    nested = ("history_refinement", "history_scale", "new_refinement", "new_scale")
    for kv, dim in product(("nested", "fp16"), (64, 128)):
        attributes = {
            "num_heads": 6,
            "num_kv_heads": 2,
            "head_dim": dim,
            "kv": kv,
            "softmax_scale": dim**-0.5,
            "epsilon": 1e-6,
        }
        planes = nested if kv == "nested" else ()
        for optional in _subsets(("kv4_length", "qkv_bias", "q_norm", "k_norm", "sub_norm")):
            yield _node("NestedKVAttention", attributes, (*planes, *optional))
    for word, optional in product(("silu", "relu2"), _subsets(("sub_norm",))):
        attributes = {"width": WIDTH, "activation": word, "epsilon": 1e-5}
        yield _node("GatedActQuant", attributes, optional)
    for (attributes, ports), logits in product(_kinds(), _subsets(("logits",))):
        yield _node("GreedyHead", {**attributes, "top_k": 2}, (*ports, *logits))


def of_operator(op: str) -> list[Signature]:
    """The signatures of one operator, the one with the most ports last."""
    return sorted((s for s in signatures() if s.node.op == op), key=lambda s: len(s.inputs))
