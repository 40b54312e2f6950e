"""Engine ``cpu``: the graph as a static plan of C calls over one arena, one plan per replay state.

The memory and the C records are made once for the widest window of a graph: a narrower one uses the
first rows of every tensor, so that its plan costs little (a block drafter has dozens of states).

A step copies its window into the plan's inputs, makes one C call, and copies the outputs out:
Python is not entered between operators.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bundle import Bundle
from ..errors import UserError
from ..operators import Node, Spec
from . import cpu_library as lib
from .arena import place
from .base import Engine, ReplayState, Role, StepOutput, Window
from .kv_buffer import KVBuffer, aligned_bytes
from .operator_records import build_call, narrow_call
from .step_layout import (
    SharedBlock,
    StepInputs,
    check_state,
    lifetimes,
    narrowed,
    tensor_specs,
)


class CpuEngine(Engine):
    """One sequence on the CPU.

    threads: 0 takes one for every processor of the process. isa: an instruction set of
    :func:`cpu_library.isas`, None the best. keep_tensors: every tensor of a step keeps its own
    memory, so that :meth:`tensors` can show them (for ``verify``). empty: plans have no calls, and
    a step costs what Python does around them (for ``bench``).

    Calls from several Python threads take turns, since a step reads its inputs as it runs; what a
    sequence then holds is the callers' affair.
    """

    name = "cpu"

    def __init__(
        self,
        bundle: Bundle,
        *,
        threads: int = 0,
        isa: str | None = None,
        keep_tensors: bool = False,
        empty: bool = False,
    ) -> None:
        self.bundle = bundle
        self._keep_tensors = keep_tensors
        self._empty = empty
        self._isa = isa
        self._turn = threading.Lock()
        lib.select_isa(isa)  # refuses an unknown one now; plans select it again
        self._pool = lib.Pool(threads)
        self._nodes = {role: bundle.nodes(role) for role in ("draft", "verify")}
        self._weights = bundle.weights
        self._max_width = bundle.replay.max_width
        self._graphs: dict[tuple[Role, bool], _Graph] = {}
        self._plans: dict[ReplayState, _Plan] = {}
        self._last: _Plan | None = None
        self._take(KVBuffer(self._nodes["verify"], bundle.replay.segments[0], self._max_width))
        self._arena = SharedBlock(lambda size: aligned_bytes(size, "the tensors of a step"))
        self._workspace = SharedBlock(lambda size: aligned_bytes(size, "the workspace of a step"))

    @property
    def segment(self) -> int:
        return self._kv.capacity

    @property
    def threads(self) -> int:
        return self._pool.threads

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        with self._turn:
            plan = self.plan(state)
            plan.inputs.take(window)
            plan.run()
            self._last = plan
            return plan.output()

    def memory(self) -> dict[str, int]:
        with self._turn:
            return {
                "weights": sum(entry.bytes for entry in self.bundle.tensors.values()),
                "kv": sum(plane.nbytes for plane in self._kv.planes),
                "arena": self._arena.of(0).size,
                "workspace": self._workspace.of(0).size,
            }

    def promote(self, rows: Sequence[int], at: int) -> None:
        with self._turn:
            self._kv_planes.promote(rows, at)

    def grow(self, segment: int, rows: int) -> None:
        with self._turn:
            if segment == self._kv.capacity:
                return
            grown = KVBuffer(self._nodes["verify"], segment, self._max_width)
            grown.copy_history(self._kv, rows)
            self._take(grown)
            self._forget_plans()

    def close(self) -> None:
        with self._turn:
            self._forget_plans()
            self._pool.close()

    def tensors(self) -> dict[str, NDArray[Any]] | None:
        if not self._keep_tensors or self._last is None:
            return None
        seen = {**self._last.tensors(), **self._kv.history}
        return {name: array.copy() for name, array in seen.items()}

    def profile(self, state: ReplayState, window: Window) -> list[tuple[Node, int]]:
        """One step, and the nanoseconds that each node took."""
        with self._turn:
            plan = self.plan(state)
            plan.inputs.take(window)
            return list(zip(plan.nodes, plan.run_profiled(), strict=True))

    def _forget_plans(self) -> None:
        self._graphs.clear()
        self._plans.clear()
        self._last = None

    def _take(self, kv: KVBuffer) -> None:
        self._kv = kv
        self._kv_planes = lib.KVPlanes(kv.planes, kv.capacity)

    def plan(self, state: ReplayState) -> _Plan:
        """The plan of a replay state, made at its first use."""
        plan = self._plans.get(state)
        if plan is None:
            check_state(state, self._kv.capacity, self._max_width)
            plan = _Plan(self, state, self._graph(state.role, state.logits))
            self._plans[state] = plan
        return plan

    def _graph(self, role: Role, logits: bool) -> _Graph:
        graph = self._graphs.get((role, logits))
        if graph is None:
            graph = self._graphs[role, logits] = _Graph(self, role, logits)
        return graph


class _Graph:
    """The C calls of a role's graph and the memory of its tensors, both for the widest window. Rows
    that no step uses are pages that the system never hands out."""

    def __init__(self, engine: CpuEngine, role: Role, logits: bool) -> None:
        self.nodes = engine._nodes[role]
        self._workspace = engine._kv.workspace
        self._logits = logits
        widest = engine._max_width
        specs = self._specs(widest, widest)
        offsets, size = place(lifetimes(self.nodes, specs, engine._keep_tensors))
        block = engine._arena.of(size)
        self.arrays: dict[str, NDArray[Any]] = {
            name: np.frombuffer(block, dtype, math.prod(shape), offsets[name]).reshape(shape)
            for name, (dtype, shape) in specs.items()
        }
        # Kept: what the records point at.
        self._tensors = {
            **engine._weights,
            **engine._kv.history,
            **self.arrays,
            **self._workspace,
        }
        self.calls = [build_call(node, self._tensors, widest, widest) for node in self.nodes]

    def tensors(self, m: int, h: int) -> dict[str, NDArray[Any]]:
        """Every tensor of a step of ``m`` slots and ``h`` outputs, by name."""
        specs = self._specs(m, h)
        made = {name: narrowed(self.arrays[name], shape) for name, (_, shape) in specs.items()}
        return {**made, **{name: rows[:m] for name, rows in self._workspace.items()}}

    def _specs(self, m: int, h: int) -> dict[str, Spec]:
        return tensor_specs(self.nodes, m, h, self._workspace, self._logits)


class _Plan:
    """The C calls of one replay state, and the arrays through which a step goes."""

    def __init__(self, engine: CpuEngine, state: ReplayState, graph: _Graph) -> None:
        self._state = state
        self._graph = graph
        self._pool = engine._pool
        self.nodes = graph.nodes
        h = state.outputs
        for _, record in graph.calls:
            narrow_call(record, state.width, h)
        users = [(op, record) for op, record in graph.calls if hasattr(record, "workspace")]
        needs = [lib.workspace_bytes(op, record, self._pool.threads) for op, record in users]
        self._workspace = engine._workspace.of(max(needs))
        for _, record in users:
            record.workspace = self._workspace.ctypes.data
        lib.select_isa(engine._isa)  # one setting of the library for all engines
        try:
            self._plan = lib.Plan([] if engine._empty else graph.calls)
        except lib.PlanError as error:
            raise UserError(f"{engine.bundle.path}: {error}: export the bundle again") from None
        self.inputs = StepInputs(state, graph.arrays)
        self._ids = graph.arrays["next_token_ids"][:h]
        self._probability = graph.arrays["probability"][:h]
        self._logits = graph.arrays["logits"][:h] if state.logits else None

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Every tensor of the step that ran last, by name."""
        return self._graph.tensors(self._state.width, self._state.outputs)

    def run(self) -> None:
        self._plan.run(self._pool)

    def run_profiled(self) -> list[int]:
        return self._plan.profile(self._pool)

    def output(self) -> StepOutput:
        logits = None if self._logits is None else self._logits.copy()
        return StepOutput(self._ids.copy(), self._probability.copy(), logits)
