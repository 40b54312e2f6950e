"""An engine that times another one's steps and leaves its pipeline as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

from .engines.base import (
    Engine,
    PendingOutput,
    ReplayState,
    StagedStep,
    StagedWindow,
    StepOutput,
    Window,
)


class TimedEngine(Engine):
    """``inner``, the seconds that each of its steps took, and the order of these.

    A step takes from the call that begins it to the first look at its output, or to the end of that
    call where it waits. What the host does meanwhile, such as having the next window staged, is
    inside that time and not behind it. One that was begun behind another that ran takes from the
    look at that one, and one that nobody looks at is none.
    """

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.name = inner.name
        self.stages = inner.stages
        self.seconds: dict[ReplayState, list[float]] = {}
        self.replayed: list[ReplayState] = []
        self._looked = 0.0  # when a step ended last

    @property
    def segment(self) -> int:
        return self.inner.segment

    @property
    def threads(self) -> int | None:
        return self.inner.threads

    @property
    def device(self) -> str | None:
        return self.inner.device

    @property
    def gpu(self) -> str | None:
        return self.inner.gpu

    def memory(self) -> dict[str, int]:
        return self.inner.memory()

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        took = self._begun(state)
        output = self.inner.replay(state, window)
        took()
        return output

    def start(self, state: ReplayState, window: Window) -> StepOutput:
        took = self._begun(state)
        return self._timed(self.inner.start(state, window), took)

    def stage(self, state: ReplayState, window: StagedWindow) -> StagedStep | None:
        staged = self.inner.stage(state, _inner(window))
        return None if staged is None else _TimedStep(self, state, staged)

    def start_staged(self, state: ReplayState, window: StagedWindow) -> StepOutput | None:
        took = self._begun(state)
        output = self.inner.start_staged(state, _inner(window))
        return None if output is None else self._timed(output, took)

    def promote(self, rows: Sequence[int], at: int) -> None:
        self.inner.promote(rows, at)

    def grow(self, segment: int, rows: int) -> None:
        self.inner.grow(segment, rows)

    def close(self) -> None:
        self.inner.close()

    def _timed(self, output: StepOutput, took: Callable[[], None]) -> StepOutput:
        if isinstance(output, PendingOutput):
            return _TimedOutput(output, took)
        took()
        return output

    def _begun(self, state: ReplayState) -> Callable[[], None]:
        """What is to be called when the step that begins now has ended."""
        return partial(self._took, state, perf_counter())

    def _took(self, state: ReplayState, began: float) -> None:
        ended = perf_counter()
        self.replayed.append(state)
        self.seconds.setdefault(state, []).append(ended - max(began, self._looked))
        self._looked = ended


class _TimedOutput(PendingOutput):
    """``inner``; the first look at it calls ``took``."""

    inner: PendingOutput

    def __init__(self, inner: PendingOutput, took: Callable[[], None]) -> None:
        def wait() -> StepOutput:
            output = inner._output
            took()
            return output

        super().__init__(wait)
        object.__setattr__(self, "inner", inner)


def _inner(window: StagedWindow) -> StagedWindow:
    """``window`` as the engine inside knows it."""
    if isinstance(window.drafts, _TimedOutput):
        return window._replace(drafts=window.drafts.inner)
    return window


class _TimedStep(StagedStep):
    def __init__(self, engine: TimedEngine, state: ReplayState, inner: StagedStep) -> None:
        self._engine = engine
        self._state = state
        self._inner = inner

    def start(self) -> StepOutput:
        took = self._engine._begun(self._state)
        return self._engine._timed(self._inner.start(), took)
