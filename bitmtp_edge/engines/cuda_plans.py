"""What a step of engine ``cuda`` is: a graph's records, and a state's plan."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ..errors import UserError
from ..operators import STEP_INPUTS, STEP_OUTPUTS, Node, Spec
from .arena import place
from .base import ReplayState
from .cuda_device import CudaDevice
from .cuda_library import CudaLibrary
from .gpu_device import Block
from .gpu_engine import StepPlan
from .gpu_kv import GpuKVBuffer
from .gpu_library import INVALID, LaunchError
from .gpu_step import TURNS, Placed, StepInputBlock, StepOutputBlock, placed
from .operator_records import DeviceArray, build_call, narrow_call
from .step_layout import (
    SharedBlock,
    StepInputs,
    in_a_row,
    lifetimes,
    spec_bytes,
    tensor_specs,
)


class Graph:
    """The records of a role's graph and the memory of its tensors, both for the widest window."""

    def __init__(
        self,
        device: CudaDevice,
        library: CudaLibrary,
        nodes: Sequence[Node],
        weights: Mapping[str, DeviceArray],
        kv: GpuKVBuffer,
        inputs: StepInputBlock,
        arena: SharedBlock[Block],
        max_width: int,
        *,
        logits: bool,
        keep: bool,
    ) -> None:
        self.nodes = nodes
        self._library = library
        self._stream = device.stream
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
        self._host_outputs = [SharedBlock(device.pinned) for _ in range(TURNS)]
        self._tensors |= placed(self._outputs, self._output_specs, self._output_offsets)
        tensors = {
            **weights,
            **kv.history,
            **kv.workspace,
            **{name: array for name, (_, array) in self._tensors.items()},
        }
        self.calls = [build_call(node, tensors, max_width, max_width) for node in nodes]

    def outputs(self, h: int) -> StepOutputBlock:
        """``h`` rows of outputs, where they lie in the widest window."""
        specs = {
            name: (dtype, (h, *shape[1:])) for name, (dtype, shape) in self._output_specs.items()
        }
        name = list(specs)[-1]
        size = self._output_offsets[name] + spec_bytes(specs[name])
        return StepOutputBlock(
            self._library,
            self._stream,
            self._outputs.first(size),
            [host.of(size).first(size) for host in self._host_outputs],
            specs,
            self._output_offsets,
        )

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


class Plan(StepPlan):
    """The launches of one replay state. where: what a message about a record names."""

    _library: CudaLibrary

    def __init__(
        self,
        library: CudaLibrary,
        stream: int,
        state: ReplayState,
        graph: Graph,
        inputs: StepInputBlock,
        workspace: SharedBlock[Block],
        *,
        capture: bool,
        where: str,
    ) -> None:
        super().__init__(
            state,
            StepInputs(state, inputs.host),
            graph.outputs(state.outputs),
            library,
            stream,
            capture=capture,
        )
        self.graph = graph
        self._where = where
        self._users = [(op, record) for op, record in graph.calls if hasattr(record, "workspace")]
        self._narrow()
        needs = [library.workspace_bytes(op, record) for op, record in self._users]
        self._workspace = workspace.of(max(needs))

    def launch(self) -> None:
        for each in self.launches():
            each()

    def launches(self) -> list[Callable[[], None]]:
        """The step, node by node: what follows must be the launches, in order."""
        self._narrow()
        for _, record in self._users:
            record.workspace = self._workspace.address
        return [
            partial(self._launch_node, node, op, record)
            for node, (op, record) in zip(self.graph.nodes, self.graph.calls, strict=True)
        ]

    def _launch_node(self, node: Node, op: int, record: ctypes.Structure) -> None:
        try:
            self._library.launch(op, record, self._stream)
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
