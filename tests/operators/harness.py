"""One operator call run by its reference body in ONNX Runtime and by the kernels of a library."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from bitmtp_edge.engines import cpu_library as lib
from bitmtp_edge.engines import onnxruntime as ort_engine
from bitmtp_edge.engines.operator_records import build_call
from bitmtp_edge.export.operators import OPSET, model_node, reference_function
from bitmtp_edge.operators import OPERATORS, Attributes, Node

from .cuda_call import run_cuda
from .plugin_call import run_plugin

Array = NDArray[Any]
Arrays = dict[str, Array]

WIDTHS = (1, 2, 3, 5, 8, 9, 15, 16, 17, 33)

# One draw a run; a failing run is repeated with the seed that pytest's header shows.
SEED = int(os.environ.get("BITMTP_TEST_SEED") or int.from_bytes(os.urandom(4), "little"))


def rng(*labels: object) -> np.random.Generator:
    """A generator of the run's seed and the labels alone, whatever tests ran before."""
    return np.random.default_rng([SEED, *repr(labels).encode()])


def make_node(op: str, attributes: Attributes, ports: tuple[str, ...]) -> Node:
    """A node that uses ``ports``; every tensor has its port's name (outputs with ``.out``)."""
    schema = OPERATORS[op]
    return Node(
        op,
        op.lower(),
        tuple(p.name if p.name in ports or not p.optional else "" for p in schema.inputs),
        tuple(p.name + ".out" if p.name in ports or not p.optional else "" for p in schema.outputs),
        attributes,
    )


# ---- ONNX Runtime -------------------------------------------------------------------------------

_ELEMENT = {
    "int32": onnx.TensorProto.INT32,
    "float16": onnx.TensorProto.FLOAT16,
    "float32": onnx.TensorProto.FLOAT,
}


def reference_model(node: Node, dtypes: dict[str, tuple[str, int]]) -> onnx.ModelProto:
    """The model of this one node. ``dtypes`` has element type and rank of every tensor."""
    call = model_node(node)

    def infos(names: list[str]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, _ELEMENT[dtype], [None] * rank)
            for name in names
            for dtype, rank in (dtypes[name],)
        ]

    graph = helper.make_graph([call], "one", infos(call.input), infos(call.output))
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(call.domain, 1)]
    return helper.make_model(
        graph, functions=[reference_function(node)], opset_imports=opsets, ir_version=9
    )


@functools.cache
def _session(model: bytes) -> Any:
    return ort_engine.import_onnxruntime().InferenceSession(
        model, ort_engine.session_options(1), providers=["CPUExecutionProvider"]
    )


def outputs_like(node: Node, m: int, h: int = 1) -> Arrays:
    """Arrays for the node's outputs by port, full of 0xFF: NaN in every float type."""
    schema = OPERATORS[node.op]
    specs = schema.output_specs(node.attributes, m, h)
    made = {}
    for port, (dtype, shape) in zip(schema.outputs, specs, strict=False):
        if node.output(port.name):
            made[port.name] = np.empty(shape, dtype)
            made[port.name].view(np.uint8).fill(0xFF)
    return made


def run_reference(node: Node, inputs: Arrays, m: int, h: int = 1) -> Arrays:
    """Outputs by port, from the reference body. Checks their dtypes and shapes."""
    expected = outputs_like(node, m, h)
    dtypes = {name: (str(x.dtype), x.ndim) for name, x in inputs.items()}
    dtypes |= {node.output(port): (str(x.dtype), x.ndim) for port, x in expected.items()}
    model = reference_model(node, dtypes)
    key = model.SerializeToString(deterministic=True)
    results = _session(key).run([node.output(port) for port in expected], inputs)
    for (port, like), result in zip(expected.items(), results, strict=True):
        assert result.dtype == like.dtype and result.shape == like.shape, port
    return dict(zip(expected, results, strict=True))


# ---- the CPU library ----------------------------------------------------------------------------

_GUARD = 64
_GUARD_BYTE = 0xA5
THREADS = (1, 2, 3)


@functools.cache
def pool(threads: int) -> lib.Pool:
    return lib.Pool(threads)


def _aligned(like: Array) -> tuple[Array, Array]:
    """A copy of ``like`` on a 64-byte boundary, and the block around it with guard bytes."""
    block = np.full(like.nbytes + 3 * _GUARD, _GUARD_BYTE, np.uint8)
    start = _GUARD + -(block.ctypes.data + _GUARD) % 64
    copy = block[start : start + like.nbytes].view(like.dtype).reshape(like.shape)
    copy[...] = like
    return copy, block


def run_cpu(
    node: Node, inputs: Arrays, m: int, h: int = 1, *, isa: str | None = None, threads: int = 1
) -> Arrays:
    """Outputs by port, from the CPU library. Outputs start as 0xFF; nothing around them changes."""
    made = {port: _aligned(like) for port, like in outputs_like(node, m, h).items()}
    tensors = {name: _aligned(x)[0] for name, x in inputs.items()}
    tensors |= {node.output(port): copy for port, (copy, _) in made.items()}
    lib.select_isa(isa)
    op, record = build_call(node, tensors, m, h)
    workspace = np.full(lib.workspace_bytes(op, record, threads), 0xFF, np.uint8)
    if workspace.size:
        workspace, _ = _aligned(workspace)
        record.workspace = workspace.ctypes.data
    lib.Plan([(op, record)]).run(pool(threads))
    for name, x in inputs.items():
        assert x.tobytes() == tensors[name].tobytes(), f"{node.op} wrote to its input {name}"
    for port, (copy, block) in made.items():
        assert _guards_stand(block, copy), f"{node.op} wrote outside its output {port}"
    return {port: copy for port, (copy, _) in made.items()}


def _guards_stand(block: Array, copy: Array) -> bool:
    start = copy.ctypes.data - block.ctypes.data
    around = np.concatenate([block[:start], block[start + copy.nbytes :]])
    return bool((around == _GUARD_BYTE).all())


def same_bits(a: Arrays, b: Arrays) -> bool:
    return all(a[port].tobytes() == b[port].tobytes() for port in a | b)


def run_cpu_everywhere(node: Node, inputs: Arrays, m: int, h: int = 1) -> Arrays:
    """:func:`run_cpu`, with equal bits from every instruction set at every number of threads."""
    first = run_cpu(node, inputs, m, h, isa="scalar")
    for isa in lib.isas():
        for threads in THREADS:
            other = run_cpu(node, inputs, m, h, isa=isa, threads=threads)
            assert same_bits(first, other), f"{isa} with {threads} threads, M={m}: other bits"
    return first


# ---- the library under test ---------------------------------------------------------------------


def run_cuda_twice(node: Node, inputs: Arrays, m: int, h: int = 1) -> Arrays:
    """Outputs by port, from the CUDA library; a second run has the same bits."""
    first, again = (run_cuda(node, inputs, outputs_like(node, m, h), m, h) for _ in range(2))
    assert same_bits(first, again), f"two runs of {node.op} differ"
    return first


def run_plugin_everyway(node: Node, inputs: Arrays, m: int, h: int = 1) -> Arrays:
    """Outputs by port, from the TensorRT plugin: in or out of a graph the CUDA library's bits."""
    first, again = (
        run_plugin(node, inputs, outputs_like(node, m, h), captured=captured)
        for captured in (False, True)
    )
    assert same_bits(first, again), f"{node.op} differs in a CUDA graph"
    want = run_cuda(node, inputs, outputs_like(node, m, h), m, h)
    assert same_bits(first, want), f"the plugin of {node.op} and the CUDA library differ"
    return first


LIBRARIES = {
    "cpu": run_cpu_everywhere,
    "cuda": run_cuda_twice,
    "tensorrt": run_plugin_everyway,
}
library = "cpu"  # the fixture of this name sets it


def run_kernel(node: Node, inputs: Arrays, m: int, h: int = 1) -> Arrays:
    """Outputs by port, from the library under test."""
    return LIBRARIES[library](node, inputs, m, h)


# ---- sweeps -------------------------------------------------------------------------------------


def windows(g: np.random.Generator) -> Iterator[slice]:
    """Rows of a draw of ``max(WIDTHS)`` rows: one range of every width, somewhere."""
    for m in WIDTHS:
        start = int(g.integers(0, max(WIDTHS) - m + 1))
        yield slice(start, start + m)


def rows_of(inputs: Arrays, per_row: tuple[str, ...], rows: slice) -> Arrays:
    """``inputs`` with the ports of ``per_row`` cut to ``rows``."""
    return {name: x[rows] if name in per_row else x for name, x in inputs.items()}


def sweep_rows(
    node: Node, inputs: Arrays, per_row: tuple[str, ...], g: np.random.Generator
) -> Iterator[tuple[slice, Arrays, Arrays]]:
    """Runs an operator that treats rows alone at every width: (rows, body's outputs, kernel's).

    A row's bits in a library do not depend on the rows beside it.
    """
    whole = run_kernel(node, inputs, max(WIDTHS))
    for rows in windows(g):
        part, m = rows_of(inputs, per_row, rows), rows.stop - rows.start
        ours = run_kernel(node, part, m)
        beside = {port: x[rows] for port, x in whole.items()}
        assert same_bits(ours, beside), f"{node.op}: rows {rows} have other bits in another window"
        yield rows, run_reference(node, part, m), ours
