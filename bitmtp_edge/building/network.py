"""From a bundle's ONNX file to the network of one replay state: our plugins and nothing else.

The file has symbolic sizes, weights as initialisers and a reference body for every operator. What
TensorRT gets has the state's sizes; every initialiser as an input, so that a plan holds no weight;
and plain nodes, each with the ports that it has as two numbers, since a node lists only those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..bundle import GRAPH_FILES, Bundle
from ..engines.base import ReplayState
from ..engines.tensorrt_tensors import engine_tensors
from ..errors import UserError, missing_extra
from ..operators import DOMAIN, OPERATORS, Port, Spec

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

PORTS = "ports"  # of the exported nodes: the names of the ports that a node lists
INPUT_PORTS, OUTPUT_PORTS = "input_ports", "output_ports"  # bit i: port i of the operator is there
_DROPPED = "logits"  # the output that only sampling wants
_PLUGIN_ATTRIBUTES = ("plugin_version", "plugin_namespace")  # of the plugin, not of the operator


def import_onnx() -> Any:
    """The package onnx. Raises UserError where it is missing."""
    try:
        import onnx
    except ImportError:
        raise missing_extra("onnx", "jetson") from None
    return onnx


def fixed_network(bundle: Bundle, state: ReplayState) -> ModelProto:
    """The network of ``state``: shapes fixed, no initialisers, no functions.

    Raises UserError where the ONNX file is damaged, or says something else than bundle.json.
    """
    onnx = import_onnx()
    path = bundle.file(GRAPH_FILES[state.role])
    try:
        model: ModelProto = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's, which has classes of its own in each release
        first = str(error).partition("\n")[0]
        raise UserError(f"{path} is no ONNX file ({first}): export the bundle again") from None
    where = f"{path}: export the bundle again"
    opset = next((each.version for each in model.opset_import if not each.domain), None)
    if opset is None:
        raise UserError(f"no opset of ONNX is named in {where}")
    del model.functions[:]
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("", opset))
    model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    graph = model.graph
    for node in graph.node:
        _make_plugin(onnx, node, state.logits, where)
    _fix_sizes(graph, state, where)
    for weight in graph.initializer:
        graph.input.append(
            onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
        )
    del graph.initializer[:]
    if not state.logits:
        kept = [value for value in graph.output if value.name != _DROPPED]
        del graph.output[:]
        graph.output.extend(kept)
    inputs = {value.name: _spec(onnx, value) for value in graph.input}
    outputs = {value.name: _spec(onnx, value) for value in graph.output}
    differences = engine_tensors(bundle, state).differences(inputs, outputs)
    if differences:
        raise UserError(f"{differences[0]} by bundle.json, in {where}")
    return model


def _make_plugin(onnx: Any, node: NodeProto, logits: bool, where: str) -> None:
    """Makes the call of a reference body a plugin's node."""
    operator = OPERATORS.get(node.op_type)
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    if operator is None or given.keys() != {*operator.attributes, PORTS, *_PLUGIN_ATTRIBUTES}:
        raise UserError(f"node {node.name!r} is none of ours in {where}")
    ports = given[PORTS].decode().split(",")
    inputs, outputs = ports[: len(node.input)], ports[len(node.input) :]
    if not logits and _DROPPED in outputs:
        del node.output[outputs.index(_DROPPED)]
        outputs.remove(_DROPPED)
    bits = _bits(operator.inputs, inputs), _bits(operator.outputs, outputs)
    if None in bits or len(outputs) != len(node.output):
        raise UserError(f"node {node.name!r} has other ports than it lists in {where}")
    node.domain = DOMAIN
    kept = [each for each in node.attribute if each.name != PORTS]
    del node.attribute[:]
    node.attribute.extend(kept)
    for name, value in zip((INPUT_PORTS, OUTPUT_PORTS), bits, strict=True):
        node.attribute.append(onnx.helper.make_attribute(name, value))


def _bits(ports: Sequence[Port], names: Sequence[str]) -> int | None:
    """Bit i where port i is among ``names``; None unless these are ports, in order."""
    all_names = [port.name for port in ports]
    if [name for name in all_names if name in names] != list(names):
        return None
    return sum(1 << all_names.index(name) for name in names)


def _fix_sizes(graph: GraphProto, state: ReplayState, where: str) -> None:
    sizes = {
        "M": state.width,
        "mask_words": -(-state.width // 32),
        "h": state.outputs,
        "C": state.segment,
    }
    for value in (*graph.input, *graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                if size.dim_param not in sizes:
                    raise UserError(f"{value.name!r} has a size {size.dim_param!r} in {where}")
                size.dim_value = sizes[size.dim_param]


def _spec(onnx: Any, value: ValueInfoProto) -> Spec:
    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return str(dtype), tuple(size.dim_value for size in tensor.shape.dim)
