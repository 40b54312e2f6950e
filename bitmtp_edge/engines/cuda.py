"""Engine ``cuda``: the graph's node list on a GPU, one captured CUDA graph for each replay state.

Beside weights and KV planes (:mod:`.gpu_engine`), the tensors of a step lie in one block of the
device's memory, which all states share. PyTorch gives memory and a stream.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar, cast

from numpy.typing import NDArray

from ..bundle import Bundle
from ..operators import Node
from .base import ReplayState, Role, Window
from .cuda_device import CudaDevice
from .cuda_library import CudaLibrary
from .cuda_plans import Graph, Plan
from .gpu_engine import GpuEngine
from .gpu_kv import GpuKVBuffer
from .gpu_step import Placed
from .gpu_weights import Weights
from .step_layout import SharedBlock, spec_bytes

Kind = TypeVar("Kind", bound="CudaEngine")


class CudaEngine(GpuEngine):
    """One sequence on the current CUDA device of PyTorch.

    keep_tensors: every tensor of a step keeps its own memory, so that :meth:`tensors` can show
    them, and no step is captured (for ``verify``). device, library: tests put others in their
    place. weights: those of this bundle, where they are on the device already.

    Raises UserError where PyTorch with CUDA, a GPU, a library for it or memory is missing.
    """

    name = "cuda"
    _device: CudaDevice
    _library: CudaLibrary

    def __init__(
        self,
        bundle: Bundle,
        *,
        keep_tensors: bool = False,
        device: CudaDevice | None = None,
        library: CudaLibrary | None = None,
        weights: Weights | None = None,
    ) -> None:
        self._keep_tensors = keep_tensors
        library = CudaLibrary() if library is None else library
        device = CudaDevice() if device is None else device
        super().__init__(bundle, device, library, weights)
        self._arena = SharedBlock(partial(device.allocate, purpose="the tensors of a step"))
        self._workspace = SharedBlock(partial(device.allocate, purpose="the workspace of a step"))
        self._graphs: dict[tuple[Role, bool], Graph] = {}

    def beside(self, kind: type[Kind]) -> Kind:
        """An engine of ``kind`` for another sequence, on the same device, with the same weights in
        its memory."""
        return kind(self.bundle, device=self._device, library=self._library, weights=self._weights)

    def memory(self) -> dict[str, int]:
        with self._turn, self._current:
            return {
                "weights": self._weights.block.size,
                "kv": self._kv_bytes(),
                "arena": self._arena.of(0).size,
                "workspace": self._workspace.of(0).size,
                "device": self._device.used(),
            }

    def tensors(self) -> dict[str, NDArray[Any]] | None:
        with self._turn, self._current:
            if not self._keep_tensors or self._last is None:
                return None
            plan = cast(Plan, self._last.plan)
            found = plan.graph.tensors(plan.state.width, plan.state.outputs)
            history = {name: (self._kv.block, array) for name, array in self._kv.history.items()}
            return {name: self._read(at) for name, at in {**found, **history}.items()}

    def profile(self, state: ReplayState, window: Window) -> list[tuple[Node, int]]:
        """One step, and the nanoseconds of each node on the device: longer than in a replay, whose
        nodes overlap."""
        with self._turn, self._current:
            self._finish_steps()
            self._last = self._staged = None
            plan = cast(Plan, self._plan(state))
            plan.inputs.take(window)
            self._inputs.send()
            times = self._device.timed(plan.launches())
            return list(zip(plan.graph.nodes, times, strict=True))

    def _new_plan(self, state: ReplayState) -> Plan:
        return Plan(
            self._library,
            self._device.stream,
            state,
            self._graph(state),
            self._inputs,
            self._workspace,
            capture=not self._keep_tensors,
            where=str(self.bundle.path),
        )

    def _graph(self, state: ReplayState) -> Graph:
        """The graph of a state's plan: one a role, over the KV buffer that all states share."""
        key = state.role, state.logits
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._new_graph(state, self._kv)
        return graph

    def _new_graph(self, state: ReplayState, kv: GpuKVBuffer) -> Graph:
        return Graph(
            self._device,
            self._library,
            self._nodes[state.role],
            self._weights.tensors,
            kv,
            self._inputs,
            self._arena,
            self._max_width,
            logits=state.logits,
            keep=self._keep_tensors,
        )

    def _forget_plans(self) -> None:
        super()._forget_plans()
        self._graphs.clear()

    def _release(self) -> None:
        super()._release()
        del self._arena, self._workspace

    def _kv_bytes(self) -> int:
        return self._kv.block.size

    def _read(self, at: Placed) -> NDArray[Any]:
        block, array = at
        size = spec_bytes((array.dtype, array.shape))
        raw = self._device.download(block, array.address - block.address, size)
        return raw.view(array.dtype).reshape(array.shape)
