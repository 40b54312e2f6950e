"""Engine ``cuda``: the graph's node list on a GPU, one captured CUDA graph for each replay state.

Weights lie in one block of the device's memory, the KV planes of the segment in use in another, and
the tensors of a step in a third, which all states share. A step is one copy of its inputs to the
device, one graph, and one copy of its outputs into page-locked memory: a few hundred bytes. The
host may do other work meanwhile (:meth:`CudaEngine.start`), such as having the next window made of
outputs that it has not read (:meth:`CudaEngine.stage`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from weakref import ref

from numpy.typing import NDArray

from ..bundle import Bundle
from ..errors import UserError
from ..operators import Node
from ..progress import Progress
from . import abi
from .base import (
    DraftedWindow,
    Engine,
    PendingOutput,
    ReplayState,
    Role,
    StagedStep,
    StepOutput,
    Window,
)
from .cuda_device import CudaDevice
from .cuda_kv import CudaKVBuffer
from .cuda_library import CudaLibrary
from .cuda_plans import Graph, Placed, Plan, StepInputBlock, Weights
from .operator_records import DeviceArray
from .step_layout import SharedBlock, check_state, spec_bytes

SHOWN_BYTES = 1 << 30  # of weights, from which their way to the GPU is shown

Kind = TypeVar("Kind", bound="CudaEngine")


class CudaEngine(Engine):
    """One sequence on the current CUDA device.

    keep_tensors: every tensor of a step keeps its own memory, so that :meth:`tensors` can show
    them, and no step is captured (for ``verify``). device, library: tests put others in their
    place. weights: those of this bundle, where they are on the device already.

    Calls from several Python threads take turns. Raises UserError where PyTorch with CUDA, a GPU, a
    library for it or memory is missing.
    """

    name = "cuda"

    def __init__(
        self,
        bundle: Bundle,
        *,
        keep_tensors: bool = False,
        device: CudaDevice | None = None,
        library: CudaLibrary | None = None,
        weights: Weights | None = None,
    ) -> None:
        self.bundle = bundle
        self._keep_tensors = keep_tensors
        self._turn = threading.RLock()
        self._library = CudaLibrary() if library is None else library
        self._device = CudaDevice() if device is None else device
        self._nodes = {role: bundle.nodes(role) for role in ("draft", "verify")}
        self._max_width = bundle.replay.max_width
        self._weights = _upload(bundle, self._device) if weights is None else weights
        self._kv = self._kv_buffer(bundle.replay.segments[0])
        self._inputs = StepInputBlock(self._device, self._max_width)
        allocate = self._device.allocate
        self._arena = SharedBlock(partial(allocate, purpose="the tensors of a step"))
        self._workspace = SharedBlock(partial(allocate, purpose="the workspace of a step"))
        self._graphs: dict[tuple[Role, bool], Graph] = {}
        self._plans: dict[ReplayState, Plan] = {}
        self._ended = self._device.mark()
        self._last: Step | None = None
        self._staged: _StagedStep | None = None
        self._closed = False

    def beside(self, kind: type[Kind]) -> Kind:
        """An engine of ``kind`` for another sequence, on the same device, with the same weights in
        its memory."""
        return kind(self.bundle, device=self._device, library=self._library, weights=self._weights)

    @property
    def segment(self) -> int:
        return self._kv.capacity

    @property
    def device(self) -> str:
        return self._device.name

    def memory(self) -> dict[str, int]:
        with self._turn:
            return {
                "weights": self._weights.block.size,
                "kv": self._kv_bytes(),
                "arena": self._arena.of(0).size,
                "workspace": self._workspace.of(0).size,
                "device": self._device.used(),
            }

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        with self._turn:
            return self._finished(self._begin(state, window))

    def start(self, state: ReplayState, window: Window) -> StepOutput:
        with self._turn:
            step = self._begin(state, window)
            output = PendingOutput(partial(self._output_of, step))
            step.given = ref(output)
            return output

    def stage(self, state: ReplayState, window: DraftedWindow) -> StagedStep | None:
        prefix, count = window.prefix, window.count
        if len(prefix) > abi.STAGE_TOKENS:
            return None
        with self._turn:
            last = self._last
            if last is None or last.given is None or last.given() is not window.drafts:
                raise ValueError("a window is staged from the output that the last step started")
            drafted = last.plan.state.outputs
            if not prefix or not 0 <= count <= drafted or window.rows > state.width:
                raise ValueError(
                    f"{len(prefix)} tokens and {count} drafts are no window of {state}"
                )
            if not 1 <= window.heads <= min(window.rows, state.outputs):
                raise ValueError(f"{window.heads} outputs of {window.rows} rows do not fit {state}")
            self._plan(state)  # refuses a state that is not to be had
            token_ids = last.plan.graph.token_ids
            self._inputs.stage(
                self._library,
                state,
                prefix,
                window.history_length,
                token_ids,
                count,
                window.heads,
            )
            self._staged = _StagedStep(self, state)
            return self._staged

    def promote(self, rows: Sequence[int], at: int) -> None:
        with self._turn:
            self._kv.promote(rows, at, self._library)

    def grow(self, segment: int, rows: int) -> None:
        with self._turn:
            if segment == self._kv.capacity:
                return
            self._finish_last()
            grown = self._kv_buffer(segment)
            grown.copy_history(self._kv, rows)
            self._device.synchronize()  # the old planes are read until then
            self._forget_plans()
            self._kv = grown

    def close(self) -> None:
        with self._turn:
            if self._closed:
                return
            self._finish_last()
            self._device.synchronize()
            self._forget_plans()
            self._closed = True
            del self._weights, self._kv, self._inputs, self._arena, self._workspace

    def tensors(self) -> dict[str, NDArray[Any]] | None:
        with self._turn:
            if not self._keep_tensors or self._last is None:
                return None
            plan = self._last.plan
            found = plan.graph.tensors(plan.state.width, plan.state.outputs)
            history = {name: (self._kv.block, array) for name, array in self._kv.history.items()}
            return {name: self._read(at) for name, at in {**found, **history}.items()}

    def profile(self, state: ReplayState, window: Window) -> list[tuple[Node, int]]:
        """One step, and the nanoseconds of each node on the device: longer than in a replay, whose
        nodes overlap."""
        with self._turn:
            self._finish_last()
            self._last = self._staged = None
            plan = self._plan(state)
            plan.inputs.take(window)
            with self._device.ordered():
                self._inputs.send()
                times = self._device.timed(plan.launches())
            return list(zip(plan.graph.nodes, times, strict=True))

    def run_staged(self, staged: _StagedStep) -> StepOutput:
        """Runs the step whose window was staged last. ValueError for another one."""
        with self._turn:
            if self._staged is not staged:
                raise ValueError("another step has begun since this one was staged")
            return self._finished(self._begin(staged.state, None))

    def _begin(self, state: ReplayState, window: Window | None) -> Step:
        """Enqueues a step; None for ``window`` where it was staged."""
        self._finish_last()  # its inputs and outputs go through the same host memory
        plan = self._plan(state)
        if window is not None:
            plan.inputs.take(window)
        self._last = self._staged = None
        try:
            with self._device.ordered():
                if window is not None:
                    self._inputs.send()
                plan.run()
                plan.fetch()
                self._device.reach(self._ended)
        except BaseException:
            with suppress(UserError):
                self._device.synchronize()  # what was enqueued uses memory that others may get
            raise
        self._last = Step(plan)
        return self._last

    def _finish_last(self) -> None:
        if self._last is not None:
            self._finished(self._last)

    def _finished(self, step: Step) -> StepOutput:
        if step.output is None:
            self._device.await_mark(self._ended)
            step.output = step.plan.output()
        return step.output

    def _output_of(self, step: Step) -> StepOutput:
        with self._turn:
            return self._finished(step)

    def _plan(self, state: ReplayState) -> Plan:
        """The plan of a replay state, made at its first use."""
        plan = self._plans.get(state)
        if plan is None:
            check_state(state, self._kv.capacity, self._max_width)
            plan = self._plans[state] = Plan(
                self._device,
                self._library,
                state,
                self._graph(state),
                self._inputs,
                self._workspace,
                capture=not self._keep_tensors,
                where=str(self.bundle.path),
            )
        return plan

    def _graph(self, state: ReplayState) -> Graph:
        """The graph of a state's plan: one a role, over the KV buffer that all states share."""
        key = state.role, state.logits
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._new_graph(state, self._kv)
        return graph

    def _new_graph(self, state: ReplayState, kv: CudaKVBuffer) -> Graph:
        return Graph(
            self._device,
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
        self._graphs.clear()
        self._plans.clear()
        self._last = self._staged = None

    def _kv_bytes(self) -> int:
        return self._kv.block.size

    def _kv_buffer(self, capacity: int) -> CudaKVBuffer:
        return CudaKVBuffer(self._nodes["verify"], capacity, self._max_width, self._device)

    def _read(self, at: Placed) -> NDArray[Any]:
        block, array = at
        size = spec_bytes((array.dtype, array.shape))
        raw = self._device.download(block, array.address - block.address, size)
        return raw.view(array.dtype).reshape(array.shape)


class Step:
    """A step that began. given: the output that :meth:`CudaEngine.start` gave. output: None until
    the step has ended."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.given: ref[PendingOutput] | None = None
        self.output: StepOutput | None = None


class _StagedStep(StagedStep):
    def __init__(self, engine: CudaEngine, state: ReplayState) -> None:
        self._engine = engine
        self.state = state

    def replay(self) -> StepOutput:
        return self._engine.run_staged(self)


def _upload(bundle: Bundle, device: CudaDevice) -> Weights:
    """The weights in a block of the device's memory that is as weights.bin is."""
    size = max((entry.offset + entry.bytes for entry in bundle.tensors.values()), default=0)
    block = device.allocate(size, "the weights")
    arrays = [(bundle.tensors[name].offset, array) for name, array in bundle.weights.items()]
    pieces = device.upload(arrays, block)
    if size < SHOWN_BYTES:
        for _ in pieces:
            pass
    else:
        total = sum(array.nbytes for _, array in arrays)
        with Progress(total, "weights to the GPU", "bytes") as progress:
            for piece in pieces:
                progress.advance(piece)
    tensors = {
        name: DeviceArray(block.address + entry.offset, entry.dtype, entry.shape)
        for name, entry in bundle.tensors.items()
    }
    return Weights(block, tensors)
