"""One network through TensorRT's parser and builder. The names used: :mod:`..engines.tensorrt_api`.

A network of plugins and inputs leaves the builder little to choose: what is set here keeps it from
choosing anything else than what an engine of ours binds.
"""

from __future__ import annotations

from typing import Any

from ..engines.tensorrt_api import error_log, import_tensorrt, started
from ..engines.tensorrt_tensors import EngineTensors, spec_of
from ..errors import UserError
from ..operators import Spec

# What an operator may have beside its tensors. Attention asks for most, some 10 MiB at the widest;
# the limit is there because a builder without one takes all of a board's memory.
WORKSPACE_BYTES = 256 << 20


def build_plan(network_bytes: bytes, tensors: EngineTensors, where: str) -> bytes:
    """The serialised engine of an ONNX network. The device's context is to be current, and our
    plugins known to TensorRT. ``where``: what messages name.

    Raises UserError where TensorRT refuses the network, or reads other tensors than ``tensors``.
    """
    trt: Any = import_tensorrt()
    log = error_log()
    builder = started("Builder")
    # TensorRT 11 knows no other networks, and ignores the flag.
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log.handle)
    if not parser.parse(network_bytes):
        raise UserError(f"TensorRT does not parse {where}: {_parser_errors(parser)}")
    _fix_tensors(trt, network, tensors, where)
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES)
    config.max_aux_streams = 0  # one graph on one stream, and scratch that other engines use too
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise UserError(f"TensorRT does not build {where}: {log.told()}")
    return bytes(plan)


def _fix_tensors(trt: Any, network: Any, expected: EngineTensors, where: str) -> None:
    """Checks the network's inputs and outputs, and has them lie in memory row by row."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    found: list[dict[str, Spec]] = [
        {tensor.name: spec_of(trt, tensor.dtype, tensor.shape) for tensor in tensors}
        for tensors in (inputs, outputs)
    ]
    differences = expected.differences(*found)
    if differences:
        raise UserError(f"TensorRT reads {where} otherwise: {differences[0]}")
    for tensor in (*inputs, *outputs):
        tensor.allowed_formats = 1 << int(trt.TensorFormat.LINEAR)


def _parser_errors(parser: Any) -> str:
    """What the parser found, in one line."""
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    told = [f"{error.node_name() or 'the model'}: {error.desc()}" for error in errors]
    return (
        "; ".join(" ".join(line.split()) for line in dict.fromkeys(told)) or "it does not say why"
    )
