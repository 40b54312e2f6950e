"""The order of a step on a GPU, whatever runs it: begin, finish, stage, promote, grow, close.

Weights lie in one block of the device's memory, and the KV planes of the segment in use in another.
A step is one copy of its inputs to the device, a plan's run, and one copy of its outputs into
page-locked memory: a few hundred bytes. The host may do other work meanwhile
(:meth:`GpuEngine.start`). In place of the copy a kernel may make the window
(:meth:`GpuEngine.stage`), also of outputs that the host has not read, and that step may begin.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from weakref import ref

from ..bundle import Bundle
from ..errors import UserError
from . import abi
from .base import (
    Engine,
    PendingOutput,
    ReplayState,
    StagedStep,
    StagedWindow,
    StepOutput,
    Window,
)
from .gpu_device import GpuDevice
from .gpu_kv import GpuKVBuffer
from .gpu_library import CapturedGraph, StepLibrary
from .gpu_step import TURNS, StepInputBlock, StepOutputBlock
from .gpu_weights import Weights, upload_weights
from .operator_records import DeviceArray
from .step_layout import StepInputs, check_state


class StepPlan(ABC):
    """How a replay state runs: launch by launch at first, then as one captured graph.

    inputs: what of them the host writes. outputs: where they lie. capture: whether there is to be
    a graph.
    """

    def __init__(
        self,
        state: ReplayState,
        inputs: StepInputs,
        outputs: StepOutputBlock,
        library: StepLibrary,
        stream: int,
        *,
        capture: bool = True,
    ) -> None:
        self.state = state
        self.inputs = inputs
        self.outputs = outputs
        self._library = library
        self._stream = stream
        self._capture = capture
        self._graph: CapturedGraph | None = None

    def run(self) -> None:
        """Enqueues the step, between the copies of its inputs and of its outputs."""
        if self._graph is not None:
            self._graph.launch(self._stream)
            return
        # The first run loads kernels, and whatever else is put off until then: no capture may.
        self.launch()
        if self._capture:
            self._graph = self._library.capture(self.launch, self._stream)

    def release(self) -> None:
        """Lets go of what is not memory of the device. The plan does not run again, though an
        output that somebody has may still refer to it."""
        self._graph = None

    @abstractmethod
    def launch(self) -> None:
        """Enqueues the operators."""


class Step:
    """A step that began. turn: whose mark and whose host memory it has. given: the output that was
    given for it. output: None until the step has ended."""

    def __init__(self, plan: StepPlan, turn: int) -> None:
        self.plan = plan
        self.turn = turn
        self.given: ref[PendingOutput] | None = None
        self.output: StepOutput | None = None


class GpuEngine(Engine):
    """One sequence on a GPU. ``device`` is current while this is called, and ``weights`` are those
    of the bundle where they are on the device already.

    Calls from several Python threads take turns. Raises UserError where memory is missing.
    """

    stages = True

    def __init__(
        self, bundle: Bundle, device: GpuDevice, library: StepLibrary, weights: Weights | None
    ) -> None:
        self.bundle = bundle
        self._turn = threading.RLock()
        self._current = device.current()
        self._device = device
        self._library = library
        self._nodes = {role: bundle.nodes(role) for role in ("draft", "verify")}
        self._max_width = bundle.replay.max_width
        self._weights = upload_weights(bundle, device) if weights is None else weights
        self._kv = self._kv_buffer(bundle.replay.segments[0])
        self._inputs = StepInputBlock(device, library, self._max_width)
        self._plans: dict[ReplayState, StepPlan] = {}
        self._ended = [device.mark() for _ in range(TURNS)]
        self._steps: list[Step | None] = [None] * TURNS
        self._last: Step | None = None
        self._staged: _StagedStep | None = None
        self._closed = False

    @property
    def segment(self) -> int:
        return self._kv.capacity

    @property
    def device(self) -> str:
        return self._device.name

    @property
    def gpu(self) -> str | None:
        return self._device.uuid

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        with self._turn, self._current:
            return self._finished(self._begin(state, window))

    def start(self, state: ReplayState, window: Window) -> StepOutput:
        with self._turn, self._current:
            return self._pending(self._begin(state, window))

    def stage(self, state: ReplayState, window: StagedWindow) -> StagedStep | None:
        with self._turn, self._current:
            if not self._make(state, window):
                return None
            self._staged = staged = _StagedStep(self, state)
            return staged

    def start_staged(self, state: ReplayState, window: StagedWindow) -> StepOutput | None:
        with self._turn, self._current:
            if not self._make(state, window):
                return None
            return self._pending(self._begin(state, None))

    def _make(self, state: ReplayState, window: StagedWindow) -> bool:
        """Enqueues the making of a window; False where that is left to the host."""
        if not self.stages or len(window.prefix) > abi.STAGE_TOKENS:
            return False
        rows, heads = window.rows, window.heads
        if not 0 <= window.two_way <= rows <= state.width:
            raise ValueError(f"{rows} rows are no window of {state}")
        if not 1 <= heads <= min(rows, state.outputs):
            raise ValueError(f"{heads} outputs of {rows} rows do not fit {state}")
        drafts = self._last_tokens(window) if window.taken else None
        self._plan(state)  # refuses a state that is not to be had
        self._staged = None
        self._inputs.stage(state, window, drafts)
        return True

    def _last_tokens(self, window: StagedWindow) -> DeviceArray:
        """Where the last step has the tokens that the window takes."""
        last = self._last
        if last is None or last.given is None or last.given() is not window.drafts:
            raise ValueError("a window is staged from the output that the last step started")
        if not 0 <= window.taken <= last.plan.state.outputs:
            raise ValueError(f"{window.taken} drafts are no rows of {last.plan.state}")
        return last.plan.outputs.tensors["next_token_ids"]

    def start_step(self, staged: _StagedStep) -> StepOutput:
        """Starts the step whose window was staged last. ValueError for another one."""
        with self._turn, self._current:
            if self._staged is not staged:
                raise ValueError("another step has begun since this one was staged")
            return self._pending(self._begin(staged.state, None))

    def promote(self, rows: Sequence[int], at: int) -> None:
        with self._turn, self._current:
            self._kv.promote(rows, at, self._library)

    def grow(self, segment: int, rows: int) -> None:
        with self._turn, self._current:
            if segment == self._kv.capacity:
                return
            self._finish_steps()
            grown = self._kv_buffer(segment)
            grown.copy_history(self._kv, rows)
            self._device.synchronize()  # the old planes are read until then
            self._forget_plans()
            self._kv = grown

    def close(self) -> None:
        with self._turn, self._current:
            if self._closed:
                return
            self._closed = True
            try:
                self._finish_steps()
                self._device.synchronize()
            finally:
                self._forget_plans()
                self._release()

    @abstractmethod
    def _new_plan(self, state: ReplayState) -> StepPlan:
        """The plan of a state that the KV buffer in use can serve."""

    def _forget_plans(self) -> None:
        for plan in self._plans.values():
            plan.release()
        self._plans.clear()
        self._steps = [None] * TURNS
        self._last = self._staged = None

    def _release(self) -> None:
        """Lets go of the device's memory."""
        del self._weights, self._kv, self._inputs, self._ended

    def _begin(self, state: ReplayState, window: Window | None) -> Step:
        """Enqueues a step; None for ``window`` where it was staged."""
        if window is not None:
            self._finish_steps()  # its inputs go through the same host memory
        plan = self._plan(state)
        if window is not None:
            plan.inputs.take(window)
        turn = 0 if self._last is None else (self._last.turn + 1) % TURNS
        if (earlier := self._steps[turn]) is not None:
            self._finished(earlier)
        self._last = self._staged = None
        try:
            if window is not None:
                self._inputs.send()
            plan.run()
            plan.outputs.fetch(turn)
            self._device.reach(self._ended[turn])
            self._last = self._steps[turn] = step = Step(plan, turn)
        except BaseException:
            with suppress(UserError):
                self._device.synchronize()  # what was enqueued uses memory that others may get
            raise
        return step

    def _finish_steps(self) -> None:
        for step in self._steps:
            if step is not None:
                self._finished(step)

    def _finished(self, step: Step) -> StepOutput:
        if step.output is None:
            self._device.await_mark(self._ended[step.turn])
            step.output = step.plan.outputs.output(step.turn)
        return step.output

    def _pending(self, step: Step) -> PendingOutput:
        output = PendingOutput(partial(self._output_of, step))
        step.given = ref(output)
        return output

    def _output_of(self, step: Step) -> StepOutput:
        if step.output is not None:  # perhaps of an engine that is closed by now
            return step.output
        with self._turn, self._current:
            return self._finished(step)

    def _plan(self, state: ReplayState) -> StepPlan:
        """The plan of a replay state, made at its first use."""
        plan = self._plans.get(state)
        if plan is None:
            check_state(state, self._kv.capacity, self._max_width)
            plan = self._plans[state] = self._new_plan(state)
        return plan

    def _kv_buffer(self, capacity: int) -> GpuKVBuffer:
        return GpuKVBuffer(self._nodes["verify"], capacity, self._max_width, self._device)


class _StagedStep(StagedStep):
    def __init__(self, engine: GpuEngine, state: ReplayState) -> None:
        self._engine = engine
        self.state = state

    def start(self) -> StepOutput:
        return self._engine.start_step(self)
