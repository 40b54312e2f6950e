"""What TensorRT is given to parse: plugins and inputs, nothing else, in the sizes of one state."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from bitmtp_edge.building.network import fixed_network
from bitmtp_edge.building.states import chosen_states
from bitmtp_edge.bundle import Bundle, TensorEntry
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import ReplayState, Role
from bitmtp_edge.engines.tensorrt_manifest import state_name
from bitmtp_edge.engines.tensorrt_tensors import engine_tensors
from bitmtp_edge.errors import UserError
from bitmtp_edge.operators import OPERATORS

from ..damage import link_copy
from ..fakes.network_step import NetworkStep

BUNDLES = ("tiny_bundle", "fp16_bundle", "tiny_ternary_bundle")
KINDS = tuple(product(("draft", "verify"), (False, True)))


@pytest.fixture(params=BUNDLES)
def any_bundle(request: pytest.FixtureRequest) -> Bundle:
    found: Bundle = request.getfixturevalue(request.param)
    return found


def state_of(bundle: Bundle, role: Role, logits: bool) -> ReplayState:
    """The widest of the role."""
    states = ReplayStates.of(bundle).all(logits)
    return max((s for s in states if s.role == role), key=lambda s: (s.width, s.outputs))


@pytest.mark.parametrize(("role", "logits"), KINDS)
def test_no_weight_is_left(any_bundle: Bundle, role: Role, logits: bool) -> None:
    """Neither as an initialiser nor as a constant nor in an attribute: what is parsed is some
    hundred bytes an operator, however large the weights are."""
    state = state_of(any_bundle, role, logits)
    model = fixed_network(any_bundle, state)
    assert not model.graph.initializer and not model.functions
    assert {node.op_type for node in model.graph.node} <= OPERATORS.keys()
    assert model.ByteSize() < 600 * len(model.graph.node) < 16384
    largest = max(attribute.ByteSize() for node in model.graph.node for attribute in node.attribute)
    assert largest < 64
    weights = {entry.bytes for entry in any_bundle.tensors.values()}
    assert max(weights) > 16384


@pytest.mark.parametrize(("role", "logits"), KINDS)
def test_the_step_is_that_of_bundle_json(any_bundle: Bundle, role: Role, logits: bool) -> None:
    """Read back by the fields alone, as our creators do, the nodes are the bundle's."""
    state = state_of(any_bundle, role, logits)
    step = NetworkStep(fixed_network(any_bundle, state))
    assert (step.m, step.h) == (state.width, state.outputs)
    for found, node in zip(step.nodes, any_bundle.nodes(role), strict=True):
        assert (found.op, found.name) == (node.op, node.name)
        ports = OPERATORS[node.op]
        for port in ports.inputs:
            assert found.input(port.name) == node.input(port.name), (node.name, port)
        for port in ports.outputs:
            made = node.output(port.name)
            assert found.output(port.name) == (made if logits or made != "logits" else "")
        for name, value in node.attributes.items():
            kind = np.float32 if isinstance(value, float) else type(value)
            assert found.attributes[name] == kind(value)
    tensors = engine_tensors(any_bundle, state)
    assert tensors.differences(step.inputs, step.outputs) == []
    assert ("logits" in step.outputs) is logits
    history = [name for name in step.inputs if name.endswith(".history")]
    assert history and all(step.inputs[name][1][0] == state.segment for name in history)
    rows = [name for name in step.outputs if name.endswith(".new_rows")]
    assert rows and all(step.outputs[name][1][0] == state.width for name in rows)


def test_every_state_is_its_own_network(tiny_ternary_bundle: Bundle) -> None:
    seen = set()
    for state in chosen_states(tiny_ternary_bundle, ["*"]):
        step = NetworkStep(fixed_network(tiny_ternary_bundle, state))
        key = (step.m, step.h, *sorted(step.inputs.items()), *sorted(step.outputs))
        # Of ternary weights both roles have one graph.
        assert (state.role, key) not in seen, state_name(state)
        seen.add((state.role, key))


def test_draft_networks_of_nested_weights_read_one_plane(tiny_bundle: Bundle) -> None:
    inputs = {
        role: NetworkStep(fixed_network(tiny_bundle, state_of(tiny_bundle, role, False))).inputs
        for role in ("draft", "verify")
    }
    more = inputs["verify"].keys() - inputs["draft"].keys()
    assert more and all(name.endswith(".refinement") for name in more)


# ---- what does not fit -----------------------------------------------------------------------


def edited(bundle: Bundle, folder: Path, edit: str) -> Bundle:
    """A copy whose verify.onnx has one thing wrong."""
    path = link_copy(bundle.path, folder / "edited") / "verify.onnx"
    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    path.unlink()
    if edit == "bytes":
        path.write_bytes(b"\xff" * 64)
        return Bundle(path.parent, bundle.manifest)
    if edit == "opset":
        del model.opset_import[:]
    if edit == "operator":
        graph.node[0].op_type = "Gather"
    if edit == "attribute":
        graph.node[1].attribute.append(helper.make_attribute("more", 1))
    if edit == "ports":
        ports = next(each for each in graph.node[0].attribute if each.name == "ports")
        ports.s = b"hidden," + ports.s
    if edit == "size":
        graph.input[0].type.tensor_type.shape.dim[0].dim_param = "K"
    if edit == "dtype":
        graph.initializer[0].data_type = onnx.TensorProto.FLOAT
    path.write_bytes(model.SerializeToString())
    return Bundle(path.parent, bundle.manifest)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ("bytes", r"verify.onnx is no ONNX file \(.*\): export the bundle again"),
        ("opset", r"no opset of ONNX is named in .*verify.onnx: export the bundle again"),
        ("operator", r"node 'embedding' is none of ours in .*verify.onnx: export"),
        ("attribute", r"node 'layers.0.attention_norm' is none of ours in .*verify.onnx: export"),
        ("ports", r"node 'embedding' has other ports than it lists in .*verify.onnx: export"),
        ("size", r"'token_ids' has a size 'K' in .*verify.onnx: export"),
        ("dtype", r"input 'embedding.base' is float32\[.*\], expected int32\[.*\] by bundle.json"),
    ],
)
def test_a_file_that_says_something_else(
    tiny_bundle: Bundle, tmp_path: Path, edit: str, told: str
) -> None:
    bundle = edited(tiny_bundle, tmp_path, edit)
    with pytest.raises(UserError, match=told) as caught:
        fixed_network(bundle, state_of(bundle, "verify", False))
    assert "\n" not in str(caught.value)


def test_bundle_json_that_says_something_else(tiny_bundle: Bundle) -> None:
    tensors = dict(tiny_bundle.tensors)
    tensors["final_norm"] = replace(tensors["final_norm"], shape=(4,))
    tensors["unused"] = TensorEntry("int32", (1,), 0, 4)  # no graph reads it
    bundle = Bundle(tiny_bundle.path, replace(tiny_bundle.manifest, tensors=tensors))
    with pytest.raises(UserError, match=r"input 'final_norm' is float32\[128\], expected float32"):
        fixed_network(bundle, state_of(bundle, "verify", False))


def test_without_onnx(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"onnx is not installed: install the extra 'jetson'"):
        fixed_network(tiny_bundle, state_of(tiny_bundle, "verify", False))
