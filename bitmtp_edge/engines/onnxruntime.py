"""Engine ``onnxruntime``: the exported file with its reference bodies. Slow, trusted.

The oracle for values, not for bits: ONNX Runtime orders its sums as it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..bundle import GRAPH_FILES, Bundle
from ..errors import UserError, missing_extra
from .base import Engine, ReplayState, Role, StepOutput, Window
from .kv_buffer import KVBuffer


def import_onnxruntime() -> Any:
    """The onnxruntime module, from either of its packages."""
    try:
        import onnxruntime
    except ImportError:
        raise missing_extra("onnxruntime", "export") from None
    return onnxruntime


def session_options(threads: int = 0) -> Any:
    """Options that run reference bodies as they stand.

    Graph optimisation is off: constant folding would keep every unpacked weight, 16 times its size.
    Memory reuse is off: its planner takes a minute over a graph of this many small nodes.
    """
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse = False
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options


class OnnxRuntimeEngine(Engine):
    """One sequence in ONNX Runtime.

    provider: an execution provider, such as ``CUDAExecutionProvider`` of onnxruntime-gpu; None
    takes the CPU's. threads: 0 leaves the choice to ONNX Runtime.
    """

    name = "onnxruntime"

    def __init__(self, bundle: Bundle, *, provider: str | None = None, threads: int = 0) -> None:
        self.bundle = bundle
        provider = provider or "CPUExecutionProvider"
        available = import_onnxruntime().get_available_providers()
        if provider not in available:
            raise UserError(
                f"this ONNX Runtime has no provider {provider!r}; it has {', '.join(available)}"
            )
        self._provider = provider
        self._options = session_options(threads)
        self._sessions: dict[Role, Any] = {}
        self._nodes = bundle.nodes("verify")
        self._kv = KVBuffer(self._nodes, bundle.replay.segments[0], bundle.replay.max_width)

    @property
    def segment(self) -> int:
        return self._kv.capacity

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        session = self._session(state.role)
        feeds = {
            "token_ids": window.token_ids,
            "positions": window.positions,
            "mask": window.mask,
            "history_length": np.array([window.history_length], np.int32),
            "kv4_length": np.array([window.kv4_length], np.int32),
            "head_slots": window.head_slots,
            **self._kv.history,
        }
        wanted = {i.name for i in session.get_inputs()}
        names = ["next_token_ids", "probability"] + (["logits"] if state.logits else [])
        rows = list(self._kv.workspace)
        results = session.run(names + rows, {k: v for k, v in feeds.items() if k in wanted})
        for name, made in zip(rows, results[len(names) :], strict=True):
            self._kv.workspace[name][: state.width] = made
        return StepOutput(*results[: len(names)])

    def promote(self, rows: Sequence[int], at: int) -> None:
        self._kv.promote(rows, at)

    def grow(self, segment: int, rows: int) -> None:
        if segment != self._kv.capacity:
            grown = KVBuffer(self._nodes, segment, self.bundle.replay.max_width)
            grown.copy_history(self._kv, rows)
            self._kv = grown

    def close(self) -> None:
        self._sessions.clear()

    def _session(self, role: Role) -> Any:
        if role not in self._sessions:
            path = self.bundle.file(GRAPH_FILES[role])
            try:
                self._sessions[role] = import_onnxruntime().InferenceSession(
                    str(path), self._options, providers=[self._provider]
                )
            except Exception as error:  # onnxruntime raises many private classes
                first = str(error).splitlines()[0]
                raise UserError(f"ONNX Runtime does not take {path}: {first}") from None
        return self._sessions[role]
