"""Engine ``cuda`` without shared KV, without hoisted preparation, or without both: what these two
save is measured against it (:mod:`.runtimes`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .base import ReplayState, Window
from .cuda import CudaEngine
from .cuda_plans import Graph
from .gpu_engine import Step
from .gpu_kv import GpuKVBuffer
from .runtimes import Runtime


class HostPreparedEngine(CudaEngine):
    """Every window is made on the host."""

    stages = False


class PrivateKVEngine(CudaEngine):
    """Every replay state has a KV buffer of its own, which is in use while the state is."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._private: dict[ReplayState, _PrivateKV] = {}
        self._changed = _Rows()  # since the buffer in use is
        self._rows = 0  # history ends here, or before
        super().__init__(*arguments, **options)

    def promote(self, rows: Sequence[int], at: int) -> None:
        with self._turn, self._current:
            super().promote(rows, at)
            self._changed.add(at, at + len(rows))
            self._rows = max(self._rows, at + len(rows))

    def grow(self, segment: int, rows: int) -> None:
        with self._turn, self._current:
            super().grow(segment, rows)
            self._rows = min(self._rows, segment)

    def _begin(self, state: ReplayState, window: Window | None) -> Step:
        self._plan(state)
        private = self._private[state]
        if private.kv is not self._kv:
            self._use(private)
        return super()._begin(state, window)

    def _use(self, private: _PrivateKV) -> None:
        for each in self._private.values():
            if each.kv is not self._kv:
                each.older.add(self._changed.first, self._changed.end)
        private.kv.copy_history(self._kv, private.older.end, private.older.first)
        private.older = _Rows()
        self._changed = _Rows()
        self._kv = private.kv

    def _graph(self, state: ReplayState) -> Graph:
        if self._private:
            private = _PrivateKV(self._kv_buffer(self.segment), _Rows(0, self._rows))
        else:
            private = _PrivateKV(self._kv, _Rows())
        self._private[state] = private
        return self._new_graph(state, private.kv)

    def _forget_plans(self) -> None:
        super()._forget_plans()
        self._private.clear()
        self._changed = _Rows()

    def _kv_bytes(self) -> int:
        return super()._kv_bytes() * max(1, len(self._private))


@dataclass
class _Rows:
    """History rows ``first .. end - 1``."""

    first: int = 0
    end: int = 0

    def add(self, first: int, end: int) -> None:
        """Takes these rows too, and what lies between."""
        if self.first == self.end:
            self.first, self.end = first, end
        elif first < end:
            self.first, self.end = min(self.first, first), max(self.end, end)


@dataclass
class _PrivateKV:
    """A state's buffer, and which of its rows are older than those of the one in use."""

    kv: GpuKVBuffer
    older: _Rows


class GenericKVEngine(HostPreparedEngine, PrivateKVEngine):
    """Without both."""


_KINDS: dict[tuple[bool, bool], type[CudaEngine]] = {
    (True, True): CudaEngine,
    (True, False): HostPreparedEngine,
    (False, True): PrivateKVEngine,
    (False, False): GenericKVEngine,
}


def open_beside(engine: CudaEngine, runtime: Runtime) -> CudaEngine:
    """An engine of ``runtime``, on the device of ``engine`` and with its weights. Of the parts of a
    runtime the widths are not an engine's (:class:`.OneWidth`)."""
    return engine.beside(_KINDS[runtime.shared_kv, runtime.hoisted])
