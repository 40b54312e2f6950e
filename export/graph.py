"""From a model's shapes to the nodes of its two graphs, and from nodes to an ONNX file over
weights.bin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bitmtp_edge import __version__
from bitmtp_edge.bundle import MASK_TABLE, WEIGHTS_FILE, TensorEntry
from bitmtp_edge.errors import missing_extra
from bitmtp_edge.operators import STEP_INPUTS, STEP_OUTPUTS, Node, kv_names, kv_row_specs

from .checkpoints.base import ModelConfig
from .model_tensors import Matrix, ModelTensors

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, TensorProto, ValueInfoProto

IR_VERSION = 10  # the newest that every supported ONNX Runtime loads
_LINEAR_OPERATORS = {"dual": "DualPlaneLinear", "ternary": "TernaryLinear"}


class _Builder:
    """Collects the nodes of one graph. ``tensors`` says which weights there are, and of what
    kind.
    """

    def __init__(self, config: ModelConfig, tensors: ModelTensors, role: str, kv: str) -> None:
        self.config = config
        self.tensors = tensors
        self.role = role
        self.kv = kv
        self.nodes: list[Node] = []

    def vector(self, name: str) -> str:
        """``name`` where the bundle has that vector, else the mark of an absent input."""
        return name if name in self.tensors.vectors else ""

    def add(
        self,
        op: str,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attributes: Mapping[str, int | float | str],
    ) -> None:
        last = max(index for index, value in enumerate(inputs) if value)
        self.nodes.append(
            Node(op, name, tuple(inputs[: last + 1]), tuple(outputs), dict(attributes))
        )

    def linear(self, name: str, source: str, residual: str = "") -> str:
        """A product with the codes ``source``; of two planes the draft role leaves the refinement
        out.
        """
        matrix = self.tensors.matrices[name]
        inputs = [*_codes(source), f"{name}.{matrix.planes[0]}", f"{name}.scales"]
        if matrix.kind == "dual":
            inputs.append("" if self.role == "draft" else f"{name}.refinement")
        output = f"{name}.out"
        op = _LINEAR_OPERATORS[matrix.kind]
        self.add(op, name, (*inputs, residual), (output,), _shape_attributes(matrix))
        return output

    def norm(self, name: str, hidden: str) -> str:
        attributes = {"width": self.config.hidden_size, "epsilon": self.config.epsilon}
        self.add("RmsNormQuant", name, (hidden, name), _codes(name), attributes)
        return name

    def attention(self, layer: int, qkv: str) -> str:
        config, prefix, kv = self.config, f"layers.{layer}.", kv_names(layer)
        nested = self.kv == "nested"
        inputs = [qkv, "positions", "mask", "history_length", "rotary", kv["history"]]
        inputs += (
            [kv["history_refinement"], kv["history_scale"], "kv4_length"] if nested else [""] * 3
        )
        optional = ("qkv_bias", "q_norm", "k_norm", "attention_sub_norm")
        inputs += [self.vector(prefix + vector) for vector in optional]
        name = prefix + "attention"
        outputs = [*_codes(name), kv["new_rows"]]
        outputs += [kv["new_refinement"], kv["new_scale"]] if nested else []
        attributes: dict[str, int | float | str] = {
            "num_heads": config.num_heads,
            "num_kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "kv": self.kv,
            "softmax_scale": config.head_dim**-0.5,
            "epsilon": config.epsilon,
        }
        self.add("NestedKVAttention", name, inputs, outputs, attributes)
        return name

    def gate(self, layer: int, gate_up: str) -> str:
        name = f"layers.{layer}.gate"
        attributes: dict[str, int | float | str] = {
            "width": self.config.intermediate_size,
            "activation": self.config.activation,
            "epsilon": self.config.epsilon,
        }
        inputs = (gate_up, self.vector(f"layers.{layer}.mlp_sub_norm"))
        self.add("GatedActQuant", name, inputs, _codes(name), attributes)
        return name

    def embedding(self) -> str:
        """Rows of the table; of two planes both are read, since a row costs nothing."""
        matrix = self.tensors.matrices["embedding"]
        output = "embedding.out"
        inputs = ["token_ids", f"embedding.{matrix.planes[0]}", "embedding.scales"]
        inputs.append("embedding.refinement" if matrix.kind == "dual" else "")
        inputs.append(MASK_TABLE if self.tensors.masks else "")
        attributes = {"kind": matrix.kind, **_shape_attributes(matrix)}
        self.add("TokenEmbedding", "embedding", inputs, (output,), attributes)
        return output

    def head(self, source: str) -> None:
        """The output projection of the codes ``source``; of two planes the draft role leaves the
        refinement out.
        """
        table = "embedding" if self.config.tied else "head"
        matrix = self.tensors.matrices[table]
        inputs = [*_codes(source), "head_slots", f"{table}.{matrix.planes[0]}", f"{table}.scales"]
        if matrix.kind == "dual" and self.role == "verify":
            inputs.append(f"{table}.refinement")
        attributes = {"kind": matrix.kind, **_shape_attributes(matrix), "top_k": 1}
        self.add("GreedyHead", "head", inputs, STEP_OUTPUTS, attributes)


def _codes(name: str) -> tuple[str, str]:
    """Tensor names of the int8 codes and the scales that the node ``name`` writes."""
    return f"{name}.codes", f"{name}.scale"


def _shape_attributes(matrix: Matrix) -> dict[str, int | float | str]:
    stack = matrix.stack
    return {"rows": stack.rows, "width": stack.width, "group_size": matrix.group_size}


def build_nodes(config: ModelConfig, tensors: ModelTensors, role: str, kv: str) -> list[Node]:
    """Nodes of the graph of ``role`` ("draft" or "verify"), in order: eight a layer.

    Of weights in two planes the draft role reads the base alone in every product; other weights
    are the same in both roles. ``kv`` is "nested" or "fp16".
    """
    graph = _Builder(config, tensors, role, kv)
    hidden = graph.embedding()
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        qkv = graph.linear(prefix + "qkv", graph.norm(prefix + "attention_norm", hidden))
        hidden = graph.linear(prefix + "o", graph.attention(layer, qkv), hidden)
        gate_up = graph.linear(prefix + "gate_up", graph.norm(prefix + "mlp_norm", hidden))
        hidden = graph.linear(prefix + "down", graph.gate(layer, gate_up), hidden)
    graph.head(graph.norm("final_norm", hidden))
    return graph.nodes


def build_model(nodes: Sequence[Node], tensors: Mapping[str, TensorEntry], name: str) -> ModelProto:
    """The ONNX file of ``nodes``: symbolic M (window), h (head slots) and C (history capacity),
    weights as external data in weights.bin, and one reference body a signature, so that ONNX
    Runtime runs it as it is.
    """
    try:
        from onnx import helper
    except ImportError:
        raise missing_extra("onnx", "export") from None
    from .operators import OPSET, model_node, reference_function

    functions: dict[tuple[str, str], FunctionProto] = {}
    for node in nodes:
        function = reference_function(node)
        functions.setdefault((function.domain, function.name), function)
    used = dict.fromkeys(value for node in nodes for value in node.inputs if value)
    graph = helper.make_graph(
        [model_node(node) for node in nodes],
        name,
        [*_step_inputs(used), *_history_inputs(nodes)],
        [*_step_outputs(nodes), *_row_outputs(nodes)],
        [_external(weight, tensors[weight]) for weight in used if weight in tensors],
    )
    domains = sorted({domain for domain, _ in functions})
    model = helper.make_model(
        graph,
        functions=list(functions.values()),
        opset_imports=[
            helper.make_opsetid("", OPSET),
            *(helper.make_opsetid(domain, 1) for domain in domains),
        ],
        ir_version=IR_VERSION,
        producer_name="bitmtp-edge",
        producer_version=__version__,
    )
    return model


def _value(name: str, dtype: str, shape: Sequence[int | str]) -> ValueInfoProto:
    from onnx import helper

    return helper.make_tensor_value_info(name, _data_type(dtype), list(shape))


def _data_type(dtype: str) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _step_inputs(used: Mapping[str, None]) -> list[ValueInfoProto]:
    shapes: dict[str, list[int | str]] = {
        "token_ids": ["M"],
        "positions": ["M"],
        "mask": ["M", "mask_words"],
        "history_length": [1],
        "kv4_length": [1],
        "head_slots": ["h"],
    }
    return [_value(name, "int32", shapes[name]) for name in STEP_INPUTS if name in used]


def _step_outputs(nodes: Sequence[Node]) -> list[ValueInfoProto]:
    head = nodes[-1].attributes
    top_k, rows = int(head["top_k"]), int(head["rows"])
    ids, probability, logits = STEP_OUTPUTS
    return [
        _value(ids, "int32", ["h", top_k]),
        _value(probability, "float32", ["h", top_k]),
        _value(logits, "float32", ["h", rows]),
    ]


def _attention_planes(
    nodes: Sequence[Node], ports: Sequence[str], slots: str
) -> list[ValueInfoProto]:
    values = []
    for node in nodes:
        if node.op == "NestedKVAttention":
            for port, (dtype, shape) in zip(ports, kv_row_specs(node.attributes, 1), strict=False):
                name = node.input(port) if port.startswith("history") else node.output(port)
                values.append(_value(name, dtype, [slots, *shape[1:]]))
    return values


def _history_inputs(nodes: Sequence[Node]) -> list[ValueInfoProto]:
    return _attention_planes(nodes, ("history", "history_refinement", "history_scale"), "C")


def _row_outputs(nodes: Sequence[Node]) -> list[ValueInfoProto]:
    return _attention_planes(nodes, ("new_rows", "new_refinement", "new_scale"), "M")


def _external(name: str, entry: TensorEntry) -> TensorProto:
    from onnx import TensorProto

    tensor = TensorProto(name=name, data_type=_data_type(entry.dtype), dims=entry.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (
        ("location", WEIGHTS_FILE),
        ("offset", entry.offset),
        ("length", entry.bytes),
    ):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
