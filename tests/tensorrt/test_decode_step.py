"""A decode step, node by node through plugin objects alone, has the bits of engine ``cuda``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.base import Role
from bitmtp_edge.engines.cuda import CudaEngine
from bitmtp_edge.engines.cuda_device import CudaDevice
from bitmtp_edge.engines.tensorrt_library import PluginLibrary
from bitmtp_edge.operators import STEP_OUTPUTS, Node

from ..engines.cuda_steps import HISTORY, TOKENS
from ..engines.steps import play, step
from ..operators.cuda_call import Placed, Workspace
from .conformance import Plugin, Session
from .signatures import Signature

pytestmark = pytest.mark.gpu

Arrays = dict[str, NDArray[Any]]


@dataclass
class PluginStep:
    """The nodes of a step as plugins. Tensors of ``arrays`` that a node makes start as 0xFF."""

    session: Session
    device: CudaDevice
    nodes: Sequence[Node]
    arrays: Arrays

    def __post_init__(self) -> None:
        self.made = [name for node in self.nodes for name in node.outputs if name]
        start = dict(self.arrays)
        for name in self.made:
            start[name] = np.full_like(self.arrays[name], 0)
            start[name].view(np.uint8).fill(0xFF)
        self.placed = Placed(self.device, start)
        self._plugins = [self._plugin(node) for node in self.nodes]
        self.workspace = Workspace(self.device, max(p.workspace_bytes for p in self._plugins))

    def enqueue(self) -> None:
        for node, plugin in zip(self.nodes, self._plugins, strict=True):
            inputs, outputs = (self._addresses(names) for names in (node.inputs, node.outputs))
            error = plugin.enqueue(inputs, outputs, self.workspace.address, self.device.stream)
            assert error == 0, self.session.log()

    def results(self) -> Arrays:
        """Every tensor that the step made; nothing else has changed."""
        made = self.placed.changed({name: self.arrays[name] for name in self.made})
        self.workspace.check()
        return made

    def release(self) -> None:
        for plugin in self._plugins:
            plugin.release()

    def _plugin(self, node: Node) -> Plugin:
        signature = Signature(node)
        inputs, outputs = (
            [(str(self.arrays[n].dtype), self.arrays[n].shape) for n in names if n]
            for names in (node.inputs, node.outputs)
        )
        plugin = self.session.take_through(node.op, signature.fields(), inputs, len(outputs))
        assert plugin.outputs == outputs, node
        return plugin

    def _addresses(self, names: Sequence[str]) -> list[int]:
        return [self.placed.array(n, self.arrays[n]).address for n in names if n]


def wanted(node: Node, logits: bool) -> Node:
    """The node without the logits where they are not asked for."""
    outputs = tuple("" if name == "logits" and not logits else name for name in node.outputs)
    return replace(node, outputs=outputs)


@pytest.fixture(params=["tiny_bundle", "fp16_bundle", "tiny_ternary_bundle"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    found: Bundle = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("role", ["draft", "verify"])
@pytest.mark.parametrize("width, logits", [(1, False), (9, True), (33, False)])
def test_plugins_alone(
    bundle: Bundle, session: Session, role: Role, width: int, logits: bool
) -> None:
    device = CudaDevice()
    with CudaEngine(bundle, keep_tensors=True) as engine:
        play(engine, TOKENS[:HISTORY])
        step(engine, TOKENS[: HISTORY + width], HISTORY, role=role, logits=logits)
        want = engine.tensors()
    assert want is not None
    nodes = [wanted(node, logits) for node in bundle.nodes(role)]
    arrays = {**bundle.weights, **want}
    used = {name for node in nodes for name in (*node.inputs, *node.outputs) if name}
    ours = PluginStep(session, device, nodes, {name: arrays[name] for name in sorted(used)})
    ours.enqueue()
    check(ours.results(), want)
    ours.placed.send()
    graph = PluginLibrary().capture(ours.enqueue, device.stream)
    assert graph.nodes >= len(nodes)
    for _ in range(3):
        graph.launch(device.stream)
    check(ours.results(), want)
    ours.release()


def check(got: Arrays, want: Arrays) -> None:
    assert {"next_token_ids", "probability"} <= set(got) & set(STEP_OUTPUTS)
    for name, array in got.items():
        assert array.tobytes() == want[name].tobytes(), name
