"""The functions themselves: valid ONNX, one for every signature; nodes fit for TensorRT."""

from __future__ import annotations

import itertools

import onnx
import pytest
from onnx import helper

from bitmtp_edge.export.operators import model_node, reference_function, signature
from bitmtp_edge.operators import DOMAIN, OPERATORS, Attributes, Node

from .attention_case import NESTED_PORTS, Shape
from .harness import make_node, outputs_like, reference_model

WEIGHT = {"rows": 21, "width": 200, "group_size": 64}
KINDS = ("fp16", "int8", "ternary", "dual")

# For every operator, attributes that change its body.
ATTRIBUTES: dict[str, list[Attributes]] = {
    "TokenEmbedding": [{**WEIGHT, "kind": kind} for kind in KINDS],
    "RmsNormQuant": [{"width": 200, "epsilon": e} for e in (1e-5, 1e-6, 1.0001e-5)],
    "TernaryLinear": [{**WEIGHT, "group_size": size} for size in (0, 64, 128)],
    "DualPlaneLinear": [WEIGHT, {**WEIGHT, "rows": 22}, {**WEIGHT, "width": 960}],
    "NestedKVAttention": [
        Shape(heads, kv_heads, 64, kv).attributes
        for heads, kv_heads in ((4, 2), (2, 2))
        for kv in ("nested", "fp16")
    ],
    "GatedActQuant": [
        {"width": width, "activation": activation, "epsilon": 1e-5}
        for width in (64, 200)
        for activation in ("silu", "relu2")
    ],
    "GreedyHead": [{**WEIGHT, "kind": kind, "top_k": k} for kind in KINDS for k in (1, 4)],
}


def _fits(op: str, attributes: Attributes, ports: tuple[str, ...]) -> bool:
    """Whether a graph can hold this node: scales and planes come with the kinds that have them."""
    kind = attributes.get("kind")
    if kind is not None:
        planes = kind == "dual" or "refinement" not in ports
        return planes and ("scales" in ports) == (kind != "fp16")
    if op == "NestedKVAttention":
        if attributes["kv"] == "fp16":
            return not {*NESTED_PORTS, "kv4_length"} & set(ports)
        return set(NESTED_PORTS) <= set(ports)
    return True


def _nodes(op: str) -> list[Node]:
    schema = OPERATORS[op]
    optional = [port.name for port in (*schema.inputs, *schema.outputs) if port.optional]
    subsets = [
        tuple(itertools.compress(optional, chosen))
        for chosen in itertools.product((False, True), repeat=len(optional))
    ]
    return [
        make_node(op, attributes, ports)
        for attributes in ATTRIBUTES[op]
        for ports in subsets
        if _fits(op, attributes, ports)
    ]


@pytest.mark.parametrize("op", OPERATORS)
def test_equal_signatures_have_equal_bodies(op: str) -> None:
    bodies: dict[str, bytes] = {}
    for node in _nodes(op):
        function = reference_function(node)
        assert function.domain == f"{DOMAIN}.{signature(node)}" and function.name == op
        function.domain = ""
        body = function.SerializeToString(deterministic=True)
        assert bodies.setdefault(signature(node), body) == body


@pytest.mark.parametrize("op", OPERATORS)
def test_nodes_carry_what_a_plugin_needs(op: str) -> None:
    for node in _nodes(op):
        call, function = model_node(node), reference_function(node)
        attributes = {a.name: helper.get_attribute_value(a) for a in call.attribute}
        assert set(OPERATORS[op].attributes) < set(attributes)
        assert attributes["plugin_version"] == b"1" and attributes["plugin_namespace"] == b""
        assert sorted(attributes) == sorted(function.attribute)
        ports = [*function.input, *function.output]
        assert attributes["ports"].decode() == ",".join(ports)
        assert all(call.input) and all(call.output)
        assert len(call.input) == len(function.input) and len(call.output) == len(function.output)


@pytest.mark.parametrize("op", OPERATORS)
def test_bodies_are_valid_onnx(op: str) -> None:
    """Types and shapes are inferred through every body and agree with the schema's outputs."""
    for node in _nodes(op):
        schema = OPERATORS[op]
        fp16 = node.attributes.get("kind") == "fp16" or node.attributes.get("kv") == "fp16"
        dtypes = {}
        for port in schema.inputs:
            dtype = port.dtype.split("|")[-1 if fp16 else 0]
            rank = port.shape.split(" | ")[0].count(",") + 1
            if port.shape == "by kind":
                rank = 2 if fp16 else 3
            dtypes[port.name] = (dtype, rank)
        for name, array in outputs_like(node, 5, 2).items():
            dtypes[node.output(name)] = (str(array.dtype), array.ndim)
        onnx.checker.check_model(reference_model(node, dtypes), full_check=True)
