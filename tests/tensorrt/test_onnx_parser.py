"""TensorRT's ONNX parser makes our plugins of our nodes, and their attributes arrive.

The parser is that of TensorRT-RTX, which cannot go on once it has made a plugin: one model of a
single operator a process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import helper

from bitmtp_edge.building.network import fixed_network
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.base import ReplayState, Role
from bitmtp_edge.operators import DOMAIN, OPERATORS, PLUGIN_VERSION, Spec

from .bad_values import BAD_VALUES, LABELS
from .signatures import Field, H, M, Signature, of_operator

PARSE = Path(__file__).with_name("parse.py")


def save(signature: Signature, fields: Sequence[Field], path: Path) -> str:
    """The model of one node with these fields."""
    node = helper.make_node(
        signature.node.op,
        [port.name for port in signature.inputs],
        [f"{port.name}.out" for port in signature.outputs],
        name="the node",
        domain=DOMAIN,
        plugin_version=PLUGIN_VERSION,
        plugin_namespace="",
        **dict(fields),
    )
    return save_node(node, signature, path)


def save_node(node: onnx.NodeProto, signature: Signature, path: Path) -> str:
    """The model of a node whose tensors are those of ``signature``."""
    inputs, outputs = (
        [_info(name, spec) for name, spec in zip(names, specs, strict=True)]
        for names, specs in (
            (node.input, signature.input_specs()),
            (node.output, signature.output_specs()),
        )
    )
    graph = helper.make_graph([node], "one", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    return str(path)


def _info(name: str, spec: Spec) -> onnx.ValueInfoProto:
    dtype, shape = spec
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, element, shape)


def parse(library: str, *models: str) -> str:
    """What the parser and our library say, to the end of the process."""
    command = [sys.executable, str(PARSE), library, *models]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert "ModuleNotFoundError" not in done.stdout, done.stdout
    return done.stdout


def telling(op: str) -> list[Signature]:
    """For each set of words (kinds, activations), the signatures with fewest and most ports."""
    by_words: dict[tuple[str, ...], list[Signature]] = {}
    for signature in of_operator(op):
        words = tuple(x for x in signature.node.attributes.values() if isinstance(x, str))
        by_words.setdefault(words, []).append(signature)
    ports = [sorted(same, key=lambda s: len(s.inputs + s.outputs)) for same in by_words.values()]
    return [signature for same in ports for signature in (same[0], same[-1])]


@pytest.mark.parametrize("op", OPERATORS)
def test_every_node_becomes_a_plugin(plugin_library: str, op: str, tmp_path: Path) -> None:
    for signature in telling(op):
        said = parse(plugin_library, save(signature, signature.fields(), tmp_path / "one.onnx"))
        assert f"Successfully created plugin: {op}" in said, f"{signature}: {said}"
        assert "not found in plugin node" not in said, f"{signature}: {said}"


@pytest.mark.parametrize("op", OPERATORS)
def test_every_attribute_arrives(plugin_library: str, op: str, tmp_path: Path) -> None:
    """A bad value of each, and none at all, is told by our library under its name."""
    signature = of_operator(op)[-1]
    fields = signature.fields()
    models, expected = [], []
    for i, (name, _) in enumerate(fields):
        bad = BAD_VALUES[name][0]
        changed = [*fields[:i], (name, bad), *fields[i + 1 :]]
        models.append(save(signature, changed, tmp_path / f"{name}.onnx"))
        expected.append(LABELS.get(name, name))
        without = fields[:i] + fields[i + 1 :]
        models.append(save(signature, without, tmp_path / f"no_{name}.onnx"))
        expected.append(f"field {name} is missing")
    said = parse(plugin_library, *models)
    for model, part in zip(models, expected, strict=True):
        before, found, said = said.partition(f"{model} parsed: False")
        assert found, (model, before)
        told = [
            line for line in before.splitlines() if line.startswith(f"bitmtp {op} 'the node': ")
        ]
        assert len(told) == 1 and part in told[0], (model, before)


@pytest.mark.parametrize("bundle", ["tiny_bundle", "fp16_bundle", "tiny_ternary_bundle"])
@pytest.mark.parametrize("logits", [False, True])
def test_the_nodes_of_a_built_network(
    plugin_library: str, bundle: str, logits: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What `build` gives to TensorRT, node by node; those that differ in names alone, once."""
    opened: Bundle = request.getfixturevalue(bundle)
    seen = set()
    for role in get_args(Role):
        state = ReplayState(M, H, opened.replay.segments[0], role, logits)
        network = fixed_network(opened, state)
        for node, ours in zip(network.graph.node, opened.nodes(role), strict=True):
            attributes = str(node.attribute)
            if (node.op_type, attributes) in seen:
                continue
            seen.add((node.op_type, attributes))
            outputs = tuple(x if logits or x != "logits" else "" for x in ours.outputs)
            model = save_node(
                node, Signature(replace(ours, outputs=outputs)), tmp_path / "one.onnx"
            )
            said = parse(plugin_library, model)
            assert f"Successfully created plugin: {node.op_type}" in said, f"{node}: {said}"
    assert {op for op, _ in seen} >= {"TokenEmbedding", "NestedKVAttention", "GreedyHead"}
