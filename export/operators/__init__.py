"""Reference bodies: each operator as a model-local function of standard ONNX operators.

They let ONNX Runtime alone run the exported file. A body cannot test for an absent input, and
overloads of one function do not load in ONNX Runtime 1.23. So there is one function per
*signature*: the operator with its attributes and the optional ports it uses. The function keeps the
operator's name and lives in the domain ``bitmtp.<signature>``; everything static is baked in, and
M, h, P and the history capacity stay symbolic.

In the model a node lists exactly the ports it uses, in schema order and without empty names, which
a TensorRT plugin could not be given; its string attribute ``ports`` tells which they are. It
carries all attributes of the schema, and those that TensorRT's plugin registry wants. The function
declares these attributes, as ONNX asks, and reads none of them. With the node's domain put back to
``bitmtp`` and the functions dropped, the same graph is a plugin graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx import helper

from bitmtp_edge.operators import DOMAIN, OPERATORS, PLUGIN_VERSION, Node

from . import (
    dual_plane_linear,
    gated_act_quant,
    greedy_head,
    nested_kv_attention,
    rms_norm_quant,
    ternary_linear,
    token_embedding,
)
from .common import OPSET, Body

__all__ = ["OPSET", "model_node", "reference_function", "signature"]

_BODIES: dict[str, tuple[Callable[[Node], str], Callable[[Body, Node], None]]] = {
    "TokenEmbedding": (token_embedding.signature, token_embedding.body),
    "RmsNormQuant": (rms_norm_quant.signature, rms_norm_quant.body),
    "TernaryLinear": (ternary_linear.signature, ternary_linear.body),
    "DualPlaneLinear": (dual_plane_linear.signature, dual_plane_linear.body),
    "NestedKVAttention": (nested_kv_attention.signature, nested_kv_attention.body),
    "GatedActQuant": (gated_act_quant.signature, gated_act_quant.body),
    "GreedyHead": (greedy_head.signature, greedy_head.body),
}


def signature(node: Node) -> str:
    """All that the body of ``node`` depends on, such as ``dual_960x576_g64_w8_res``.

    Nodes of equal signatures have equal functions.
    """
    return _BODIES[node.op][0](node)


def _ports(node: Node) -> tuple[list[str], list[str]]:
    """Names of the input and output ports that ``node`` uses, in schema order."""
    schema = OPERATORS[node.op]
    inputs = [p.name for p in schema.inputs if node.input(p.name)]
    return inputs, [p.name for p in schema.outputs if node.output(p.name)]


def _attributes(node: Node) -> dict[str, Any]:
    schema = OPERATORS[node.op].attributes
    inputs, outputs = _ports(node)
    return {
        **{name: kind(node.attributes[name]) for name, kind in schema.items()},
        "ports": ",".join(inputs + outputs),
        "plugin_version": PLUGIN_VERSION,
        "plugin_namespace": "",
    }


def reference_function(node: Node) -> onnx.FunctionProto:
    """The body of ``node``, in opset ``OPSET``.

    Its inputs and outputs are the ports that ``node`` uses, in schema order and by their names.
    """
    body = Body()
    _BODIES[node.op][1](body, node)
    inputs, outputs = _ports(node)
    return helper.make_function(
        f"{DOMAIN}.{signature(node)}",
        node.op,
        inputs,
        outputs,
        body.nodes,
        [helper.make_opsetid("", OPSET)],
        attributes=list(_attributes(node)),
    )


def model_node(node: Node) -> onnx.NodeProto:
    """``node`` as it stands in the exported model: a call of its :func:`reference_function`."""
    inputs, outputs = _ports(node)
    return helper.make_node(
        node.op,
        [node.input(port) for port in inputs],
        [node.output(port) for port in outputs],
        name=node.name,
        domain=f"{DOMAIN}.{signature(node)}",
        **_attributes(node),
    )
