"""Engine ``cpu``: the graph as a static plan of C calls over one arena, one plan per replay state.

The memory and the C records are made once for the widest window of a graph: a narrower one uses the
first rows of every tensor, so that its plan costs little (a block drafter has dozens of states).

A step copies its window into the plan's inputs, makes one C call, and copies the outputs out:
Python is not entered between operators.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bundle import Bundle
from ..errors import UserError
from ..operators import OPERATORS, STEP_OUTPUTS, Node, Spec
from . import cpu_library as lib
from .arena import Lifetime, place
from .base import Engine, ReplayState, Role, StepOutput, Window
from .operator_records import build_call, narrow_call
from .kv_buffer import KVBuffer, aligned_bytes


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
        self._arena = _SharedBlock("the tensors of a step")
        self._workspace = _SharedBlock("the workspace of a step")

    @property
    def segment(self) -> int:
        return self._kv.capacity

    @property
    def threads(self) -> int:
        return self._pool.threads

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        with self._turn:
            plan = self.plan(state)
            plan.set_window(window)
            plan.run()
            self._last = plan
            return plan.output()

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
            plan.set_window(window)
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
            if state.segment != self._kv.capacity:
                raise ValueError(f"segment {state.segment} is not in use ({self._kv.capacity} is)")
            if not 1 <= state.width <= self._max_width:
                raise ValueError(
                    f"width {state.width} is not 1 .. {self._max_width}, the workspace"
                )
            if not 1 <= state.outputs <= self._max_width:
                raise ValueError(f"{state.outputs} head slots, expected 1 .. {self._max_width}")
            plan = _Plan(self, state, self._graph(state.role, state.logits))
            self._plans[state] = plan
        return plan

    def _graph(self, role: Role, logits: bool) -> _Graph:
        graph = self._graphs.get((role, logits))
        if graph is None:
            graph = self._graphs[role, logits] = _Graph(self, role, logits)
        return graph


class _SharedBlock:
    """Memory that all plans use, since only one of them runs at a time. Where one needs a larger
    block, those made before keep the one they have."""

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._block = aligned_bytes(0, purpose)

    def of(self, size: int) -> NDArray[np.uint8]:
        if size > self._block.size:
            self._block = aligned_bytes(size, self._purpose)
        return self._block


class _Graph:
    """The C calls of a role's graph and the memory of its tensors, both for the widest window. Rows
    that no step uses are pages that the system never hands out."""

    def __init__(self, engine: CpuEngine, role: Role, logits: bool) -> None:
        self.nodes = engine._nodes[role]
        self._workspace = engine._kv.workspace
        self._logits = logits
        widest = engine._max_width
        specs = self._specs(widest, widest)
        inputs = set(_input_specs(widest, widest))
        offsets, size = place(_lifetimes(self.nodes, specs, inputs, engine._keep_tensors))
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

    def view(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """The tensor ``name`` of a narrower window, whose shape is ``shape``."""
        return self.arrays[name].reshape(-1)[: math.prod(shape)].reshape(shape)

    def tensors(self, m: int, h: int) -> dict[str, NDArray[Any]]:
        """Every tensor of a step of ``m`` slots and ``h`` outputs, by name."""
        made = {name: self.view(name, shape) for name, (_, shape) in self._specs(m, h).items()}
        return {**made, **{name: rows[:m] for name, rows in self._workspace.items()}}

    def _specs(self, m: int, h: int) -> dict[str, Spec]:
        specs = _input_specs(m, h)
        for node in self.nodes:
            made = OPERATORS[node.op].output_specs(node.attributes, m, h)
            for name, spec in zip(node.outputs, made, strict=False):
                if name and name not in self._workspace and (name != "logits" or self._logits):
                    specs[name] = spec
        return specs


class _Plan:
    """The C calls of one replay state, and the arrays through which a step goes."""

    def __init__(self, engine: CpuEngine, state: ReplayState, graph: _Graph) -> None:
        self._state = state
        self._graph = graph
        self._pool = engine._pool
        self.nodes = graph.nodes
        m, h = state.width, state.outputs
        for _, record in graph.calls:
            narrow_call(record, m, h)
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
        inputs = {name: graph.view(name, shape) for name, (_, shape) in _input_specs(m, h).items()}
        self._token_ids = inputs["token_ids"]
        self._positions = inputs["positions"]
        self._mask = inputs["mask"]
        self._history_length = inputs["history_length"]
        self._kv4_length = inputs["kv4_length"]
        self._head_slots = inputs["head_slots"]
        self._ids = graph.arrays["next_token_ids"][:h]
        self._probability = graph.arrays["probability"][:h]
        self._logits = graph.arrays["logits"][:h] if state.logits else None

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Every tensor of the step that ran last, by name."""
        return self._graph.tensors(self._state.width, self._state.outputs)

    def set_window(self, window: Window) -> None:
        """Copies the step's inputs. ValueError where they are not of this plan's shape, or a head
        slot is none of the window's: the kernels read the rows that these name."""
        if (
            window.token_ids.shape != self._token_ids.shape
            or window.positions.shape != self._positions.shape
            or window.mask.shape != self._mask.shape
            or window.head_slots.shape != self._head_slots.shape
        ):
            raise ValueError(f"the window is not one of {self._state}")
        slots = window.head_slots.tolist()
        if not 0 <= min(slots) <= max(slots) < self._state.width:
            raise ValueError(f"head slots {slots} are not slots of {self._state.width}")
        self._token_ids[:] = window.token_ids
        self._positions[:] = window.positions
        self._mask[:] = window.mask
        self._history_length[0] = window.history_length
        self._kv4_length[0] = window.kv4_length
        self._head_slots[:] = window.head_slots

    def run(self) -> None:
        self._plan.run(self._pool)

    def run_profiled(self) -> list[int]:
        return self._plan.profile(self._pool)

    def output(self) -> StepOutput:
        logits = None if self._logits is None else self._logits.copy()
        return StepOutput(self._ids.copy(), self._probability.copy(), logits)


def _input_specs(m: int, h: int) -> dict[str, Spec]:
    return {
        "token_ids": ("int32", (m,)),
        "positions": ("int32", (m,)),
        "mask": ("int32", (m, -(-m // 32))),
        "history_length": ("int32", (1,)),
        "kv4_length": ("int32", (1,)),
        "head_slots": ("int32", (h,)),
    }


def _lifetimes(
    nodes: Sequence[Node], specs: Mapping[str, Spec], inputs: set[str], keep: bool
) -> dict[str, Lifetime]:
    """Lifetime of every tensor; inputs and outputs live throughout, as all do with ``keep``."""
    first: dict[str, int] = dict.fromkeys(inputs, 0)
    last: dict[str, int] = {}
    for step, node in enumerate(nodes):
        for name in node.outputs:
            first.setdefault(name, step)
            last[name] = step
        for name in node.inputs:
            last[name] = step
    end = len(nodes)
    whole = inputs | set(STEP_OUTPUTS)
    lifetimes = {}
    for name, (dtype, shape) in specs.items():
        size = math.prod(shape) * np.dtype(dtype).itemsize
        always = keep or name in whole
        lifetimes[name] = Lifetime(
            size, 0 if always else first[name], end if always else last[name]
        )
    return lifetimes
