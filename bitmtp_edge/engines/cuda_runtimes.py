"""Engine ``cuda`` without shared KV, without hoisted preparation, or without both: what these two
save is measured against it (:mod:`.runtimes`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .base import DraftedWindow, ReplayState, Window
from .cuda import CudaEngine, Step
from .cuda_kv import CudaKVBuffer
from .cuda_plans import Graph
from .runtimes import Runtime


class HostPreparedEngine(CudaEngine):
    """Every window is made on the host."""

    def stage(self, state: ReplayState, window: DraftedWindow) -> None:
        return None


class PrivateKVEngine(CudaEngine):
    """Every replay state has a KV buffer of its own, which is in use while the state is."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._private: dict[ReplayState, _PrivateKV] = {}
        self._rows = 0  # history ends here, or before
        super().__init__(*arguments, **options)

    def promote(self, rows: Sequence[int], at: int) -> None:
        with self._turn:
            super().promote(rows, at)
            end = at + len(rows)
            self._rows = max(self._rows, end)
            for private in self._private.values():
                if private.kv is not self._kv:
                    private.lack(at, end)

    def grow(self, segment: int, rows: int) -> None:
        with self._turn:
            super().grow(segment, rows)
            self._rows = min(self._rows, segment)

    def _begin(self, state: ReplayState, window: Window | None) -> Step:
        self._plan(state)
        private = self._private[state]
        if private.kv is not self._kv:
            private.catch_up(self._kv)
            self._kv = private.kv
        return super()._begin(state, window)

    def _graph(self, state: ReplayState) -> Graph:
        kv = self._kv_buffer(self.segment) if self._private else self._kv
        self._private[state] = _PrivateKV(kv, 0, self._rows)
        return self._new_graph(state, kv)

    def _forget_plans(self) -> None:
        super()._forget_plans()
        self._private.clear()

    def _kv_bytes(self) -> int:
        return super()._kv_bytes() * max(1, len(self._private))


@dataclass
class _PrivateKV:
    """A state's buffer; history rows ``first .. end - 1`` of it are older than those in use."""

    kv: CudaKVBuffer
    first: int
    end: int

    def lack(self, first: int, end: int) -> None:
        """Rows ``first .. end - 1`` changed in the buffer in use. What lies between these and other
        rows that lack is copied with them."""
        if self.first == self.end:
            self.first, self.end = first, end
        elif first < end:
            self.first, self.end = min(self.first, first), max(self.end, end)

    def catch_up(self, used: CudaKVBuffer) -> None:
        self.kv.copy_history(used, self.end, self.first)
        self.first = self.end


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
