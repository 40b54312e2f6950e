"""What a step is on a CUDA device: its inputs and outputs, a graph's records, a state's plan."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..operators import STEP_INPUTS, STEP_OUTPUTS, Node, Spec
from . import abi
from .arena import place
from .base import ReplayState, StepOutput
from .cuda_device import Block, CudaDevice, HostBlock
from .cuda_kv import CudaKVBuffer
from .cuda_library import INVALID, CudaLibrary, LaunchError
from .operator_records import DeviceArray, build_call, narrow_call
from .step_layout import (
    SharedBlock,
    StepInputs,
    in_a_row,
    input_specs,
    lifetimes,
    spec_bytes,
    tensor_specs,
)

Placed = tuple[Block, DeviceArray]


@dataclass(frozen=True)
class Weights:
    """A bundle's weights in the device's memory: ``tensors`` by name, all in ``block``."""

    block: Block
    tensors: Mapping[str, DeviceArray]


def placed(
    block: Block, specs: Mapping[str, Spec], offsets: Mapping[str, int]
) -> dict[str, Placed]:
    """The tensors ``specs`` at their ``offsets`` in ``block``."""
    return {
        name: (block, DeviceArray(block.address + offsets[name], dtype, shape))
        for name, (dtype, shape) in specs.items()
    }


def host_arrays(
    block: HostBlock, specs: Mapping[str, Spec], offsets: Mapping[str, int]
) -> dict[str, NDArray[Any]]:
    return {
        name: np.frombuffer(block.array, dtype, math.prod(shape), offsets[name]).reshape(shape)
        for name, (dtype, shape) in specs.items()
    }


class StepInputBlock:
    """The inputs of every step, laid out for the widest window so that no graph's addresses change:
    page-locked on the host, and on the device."""

    def __init__(self, device: CudaDevice, max_width: int) -> None:
        self._device = device
        specs = input_specs(max_width, max_width)
        offsets, size = in_a_row(specs)
        self._block = device.allocate(size, "the inputs of a step")
        self._host = device.pinned(size)
        self._kv4 = (offsets["kv4_length"], spec_bytes(specs["kv4_length"]))
        self.tensors = placed(self._block, specs, offsets)
        self.host = host_arrays(self._host, specs, offsets)

    def send(self) -> None:
        """Enqueues the copy of the host's inputs to the device."""
        self._device.send(self._host, self._block)

    def stage(
        self,
        library: CudaLibrary,
        state: ReplayState,
        prefix: Sequence[int],
        history_length: int,
        drafts: DeviceArray,
        count: int,
        heads: int,
    ) -> None:
        """Enqueues the making of a causal window: ``prefix`` behind ``history_length`` rows, then
        the best tokens of the first ``count`` rows of ``drafts``, int32[h, k]."""
        made = {name: array.address for name, (_, array) in self.tensors.items()}
        made.pop("kv4_length")
        args = abi.StageArgs(
            prefix=ctypes.addressof(tokens := (ctypes.c_int32 * len(prefix))(*prefix)),
            outputs=ctypes.addressof(outputs := (ctypes.c_void_p * 1)(drafts.address)),
            output_rows=ctypes.addressof(rows := (ctypes.c_int32 * 1)(count)),
            **made,
            history=history_length,
            prefix_rows=len(tokens),
            output_count=len(outputs) if rows[0] else 0,
            top_k=drafts.shape[1],
            M=state.width,
            h=state.outputs,
            heads=heads,
        )
        library.stage(args, self._device.stream)
        with self._device.ordered():
            self._device.clear(self._block, *self._kv4)


class Graph:
    """The records of a role's graph and the memory of its tensors, both for the widest window."""

    def __init__(
        self,
        device: CudaDevice,
        nodes: Sequence[Node],
        weights: Mapping[str, DeviceArray],
        kv: CudaKVBuffer,
        inputs: StepInputBlock,
        arena: SharedBlock[Block],
        max_width: int,
        *,
        logits: bool,
        keep: bool,
    ) -> None:
        self.nodes = nodes
        self._kv = kv
        self._logits = logits
        specs = self._specs(max_width, max_width)
        apart = {*STEP_INPUTS, *STEP_OUTPUTS}
        within = {name: spec for name, spec in specs.items() if name not in apart}
        lives = lifetimes(nodes, specs, keep)
        offsets, size = place({name: lives[name] for name in within})
        self._tensors = {**inputs.tensors, **placed(arena.of(size), within, offsets)}
        self._output_specs = {name: specs[name] for name in STEP_OUTPUTS if name in specs}
        self._output_offsets, size = in_a_row(self._output_specs)
        self._outputs = device.allocate(size, "the outputs of a step")
        self._host_outputs = SharedBlock(device.pinned)
        self._tensors |= placed(self._outputs, self._output_specs, self._output_offsets)
        tensors = {
            **weights,
            **kv.history,
            **kv.workspace,
            **{name: array for name, (_, array) in self._tensors.items()},
        }
        self.calls = [build_call(node, tensors, max_width, max_width) for node in nodes]

    @property
    def token_ids(self) -> DeviceArray:
        """Where a step leaves its best tokens: int32[h, k]."""
        return self._tensors["next_token_ids"][1]

    def outputs(self, h: int) -> tuple[Block, HostBlock, dict[str, NDArray[Any]]]:
        """``h`` rows of outputs, on the device and on the host, and the latter's arrays."""
        specs = {
            name: (dtype, (h, *shape[1:])) for name, (dtype, shape) in self._output_specs.items()
        }
        name = list(specs)[-1]
        size = self._output_offsets[name] + spec_bytes(specs[name])
        host = self._host_outputs.of(size).first(size)
        return self._outputs.first(size), host, host_arrays(host, specs, self._output_offsets)

    def tensors(self, m: int, h: int) -> dict[str, Placed]:
        """Every tensor of a step of ``m`` slots and ``h`` outputs, weights and history apart."""
        found = {}
        for name, (dtype, shape) in self._specs(m, h).items():
            block, array = self._tensors[name]
            found[name] = (block, DeviceArray(array.address, dtype, shape))
        for name, rows in self._kv.workspace.items():
            shape = (m, *rows.shape[1:])
            found[name] = (self._kv.block, DeviceArray(rows.address, rows.dtype, shape))
        return found

    def _specs(self, m: int, h: int) -> dict[str, Spec]:
        return tensor_specs(self.nodes, m, h, self._kv.workspace, self._logits)


class Plan:
    """The launches of one replay state: call by call at first, then one captured graph.

    capture: whether there is to be one. where: what a message about a record names.
    """

    def __init__(
        self,
        device: CudaDevice,
        library: CudaLibrary,
        state: ReplayState,
        graph: Graph,
        inputs: StepInputBlock,
        workspace: SharedBlock[Block],
        *,
        capture: bool,
        where: str,
    ) -> None:
        self.state = state
        self.graph = graph
        self.inputs = StepInputs(state, inputs.host)
        self._device = device
        self._library = library
        self._where = where
        self._capture = capture
        self._replay: Callable[[], None] | None = None
        self._outputs, self._host, self._arrays = graph.outputs(state.outputs)
        self._users = [(op, record) for op, record in graph.calls if hasattr(record, "workspace")]
        self._narrow()
        needs = [library.workspace_bytes(op, record) for op, record in self._users]
        self._workspace = workspace.of(max(needs))

    def run(self) -> None:
        """Enqueues the step. Its first run loads kernels, which no capture may do."""
        if self._replay is not None:
            self._replay()
            return
        self._enqueue()
        if self._capture:
            self._replay = self._device.capture(self._enqueue)

    def fetch(self) -> None:
        """Enqueues the copy of the step's outputs to the host."""
        self._device.fetch(self._outputs, self._host)

    def output(self) -> StepOutput:
        """The outputs that were fetched last, as the caller's own arrays."""
        return StepOutput(*(array.copy() for array in self._arrays.values()))

    def launches(self) -> list[Callable[[], None]]:
        """The step, node by node: what follows must be the launches, in order."""
        self._narrow()
        for _, record in self._users:
            record.workspace = self._workspace.address
        return [
            partial(self._launch, node, op, record)
            for node, (op, record) in zip(self.graph.nodes, self.graph.calls, strict=True)
        ]

    def _enqueue(self) -> None:
        for launch in self.launches():
            launch()

    def _launch(self, node: Node, op: int, record: ctypes.Structure) -> None:
        try:
            self._library.launch(op, record, self._device.stream)
        except LaunchError as error:
            if error.code != INVALID:
                raise
            raise UserError(
                f"{self._where}: the CUDA library does not take node {node.name!r} in a window of "
                f"{self.state.width}: export the bundle again"
            ) from None

    def _narrow(self) -> None:
        for _, record in self.graph.calls:
            narrow_call(record, self.state.width, self.state.outputs)
