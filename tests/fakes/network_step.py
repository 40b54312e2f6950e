"""A network as TensorRT's parser and our creators would read it, for stand-ins of TensorRT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from onnx import helper

from bitmtp_edge.engines.operator_records import DeviceArray, build_call
from bitmtp_edge.operators import DOMAIN, OPERATORS, Node, Spec

_FIELD_TYPES = {int: onnx.AttributeProto.INT, float: onnx.AttributeProto.FLOAT}
_REGISTRY = {"plugin_version": b"1", "plugin_namespace": b""}


class NetworkStep:
    """A parsed network: its nodes as ours, and the specs of all its tensors. AssertionError where
    TensorRT's parser or our creators would refuse it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        assert model.ir_version <= 10
        assert {each.domain for each in model.opset_import} <= {"", DOMAIN}
        assert not model.functions and not graph.initializer and not graph.sparse_initializer
        self.inputs = {value.name: _spec_of(value) for value in graph.input}
        self.outputs = {value.name: _spec_of(value) for value in graph.output}
        self.nodes = [_node_of(node) for node in graph.node]
        self.fields = [_fields_of(node) for node in graph.node]
        (m,), (h,) = self.inputs["token_ids"][1], self.inputs["head_slots"][1]
        self.m, self.h = m, h
        self.specs: dict[str, Spec] = dict(self.inputs)
        used: set[str] = set()
        for node in self.nodes:
            made = OPERATORS[node.op].output_specs(node.attributes, m, h)
            for name, spec in zip(node.outputs, made, strict=False):
                if name:
                    assert name not in self.specs
                    self.specs[name] = spec
            named = {name for name in node.inputs if name}
            assert named <= self.specs.keys(), f"{node.name} reads what nothing made"
            used |= named
            # The records' own checks: dtype and shape of every port.
            build_call(node, {name: self._anywhere(name) for name in self.specs}, m, h)
        assert used >= self.inputs.keys(), "an input that nothing reads"
        assert all(self.specs[name] == spec for name, spec in self.outputs.items())

    def _anywhere(self, name: str) -> DeviceArray:
        return DeviceArray(256, *self.specs[name])

    def calls(self, addresses: Mapping[str, int]) -> list[tuple[int, Any]]:
        """The operators and their records, with the step's tensors at ``addresses``."""
        tensors = {name: DeviceArray(addresses[name], *self.specs[name]) for name in self.specs}
        return [build_call(node, tensors, self.m, self.h) for node in self.nodes]


def _spec_of(value: onnx.ValueInfoProto) -> Spec:
    tensor = value.type.tensor_type
    shape = tuple(size.dim_value for size in tensor.shape.dim)
    assert shape and min(shape) > 0, f"{value.name} has a size that is not fixed"
    return str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)), shape


def _node_of(node: onnx.NodeProto) -> Node:
    """The node as our creators read it: with every field that they require, and no other."""
    assert node.op_type in OPERATORS and node.domain in ("", DOMAIN)
    operator = OPERATORS[node.op_type]
    given: dict[str, Any] = {}
    for each in node.attribute:
        given[each.name] = helper.get_attribute_value(each)
        kind = operator.attributes.get(each.name, int)
        expected = onnx.AttributeProto.STRING if each.name in _REGISTRY else _FIELD_TYPES.get(kind)
        assert each.type == (expected or onnx.AttributeProto.STRING), each.name
    assert {name: given.pop(name) for name in _REGISTRY} == _REGISTRY
    present = given.pop("input_ports"), given.pop("output_ports")
    assert given.keys() == operator.attributes.keys()
    lists = []
    for bits, ports, names in (
        (present[0], operator.inputs, node.input),
        (present[1], operator.outputs, node.output),
    ):
        assert "" not in names and bits >> len(ports) == 0 and bits.bit_count() == len(names)
        left = iter(names)
        lists.append(tuple(next(left) if bits >> i & 1 else "" for i in range(len(ports))))
    text = {name: v.decode() if isinstance(v, bytes) else v for name, v in given.items()}
    return Node(node.op_type, node.name, lists[0], lists[1], text)


def _fields_of(node: onnx.NodeProto) -> dict[str, int | float | str]:
    """What the parser hands to the creator, by the attributes' own types."""
    values = [(each.name, helper.get_attribute_value(each)) for each in node.attribute]
    return {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in values
        if name not in _REGISTRY
    }
