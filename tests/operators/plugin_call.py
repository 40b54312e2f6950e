"""One operator call by its TensorRT plugin, enqueued, and again from a CUDA graph."""

from __future__ import annotations

import functools
import os

from bitmtp_edge.engines.tensorrt_library import PluginLibrary
from bitmtp_edge.operators import Node

from ..tensorrt.conformance import Session
from ..tensorrt.conftest import CONFORMANCE, LIBRARY
from ..tensorrt.signatures import Signature
from .cuda_call import Arrays, Workspace, gpu, place, results


@functools.cache
def _library() -> tuple[Session, PluginLibrary]:
    return Session(os.environ[CONFORMANCE], os.environ[LIBRARY]), PluginLibrary()


def run_plugin(node: Node, inputs: Arrays, outputs: Arrays, *, captured: bool) -> Arrays:
    """Outputs by port; ``outputs`` are what they hold before. captured: from a CUDA graph."""
    device, _ = gpu()
    session, library = _library()
    signature = Signature(node)
    placed, tensors = place(node, inputs, outputs)
    given = [tensors[node.input(port.name)] for port in signature.inputs]
    taken = [tensors[node.output(port.name)] for port in signature.outputs]
    plugin = session.take_through(
        node.op, signature.fields(), [(x.dtype, x.shape) for x in given], len(taken)
    )
    assert plugin.outputs == [(x.dtype, x.shape) for x in taken]
    space = Workspace(device, plugin.workspace_bytes)
    addresses = [[x.address for x in side] for side in (given, taken)]

    def enqueue() -> None:
        assert plugin.enqueue(*addresses, space.address, device.stream) == 0, session.log()

    enqueue()
    if captured:
        device.synchronize()  # its kernels are loaded now, which no capture may do
        placed.send()
        graph = library.capture(enqueue, device.stream)
        assert graph.nodes > 0
        graph.launch(device.stream)
    made = results(node, placed, outputs)
    space.check()
    plugin.release()
    return made
