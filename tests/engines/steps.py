"""Windows of engines' tests, and what of a step is compared bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import Engine, ReplayState, Role, StepOutput, Window


def step(
    engine: Engine,
    tokens: Sequence[int],
    history: int,
    *,
    role: Role = "verify",
    width: int | None = None,
    logits: bool = True,
    kv4_length: int = 0,
) -> StepOutput:
    """The causal window of ``tokens[history:]``, an output for each of its rows."""
    rows = len(tokens) - history
    width = width or rows
    state = ReplayState(width, rows, engine.segment, role, logits)
    window = causal_window(list(tokens), history, [], width, rows, rows, kv4_length)
    return engine.replay(state, window)


def play(engine: Engine, tokens: Sequence[int], width: int = 16) -> None:
    """Fills history with the verify rows of ``tokens``, from 0."""
    for at in range(0, len(tokens), width):
        rows = min(width, len(tokens) - at)
        step(engine, tokens[: at + rows], at)
        engine.promote(range(rows), at)


def pack_mask(sees: NDArray[np.bool_]) -> NDArray[np.int32]:
    """mask int32[M, ceil(M/32)] of sees bool[M, M]."""
    width = len(sees)
    wide = np.zeros((width, -(-width // 32) * 32), np.uint8)
    wide[:, :width] = sees
    return np.packbits(wide, axis=1, bitorder="little").view("<i4").astype(np.int32)


@dataclass(frozen=True)
class Tree:
    """A window whose slots hang below each other. parents: of each slot, -1 hangs on history."""

    parents: tuple[int, ...]

    def path(self, slot: int) -> list[int]:
        """Slots from the first below history to ``slot``."""
        above = self.path(self.parents[slot]) if self.parents[slot] >= 0 else []
        return [*above, slot]

    def window(self, ids: Sequence[int], history: int) -> Window:
        width = len(self.parents)
        sees = np.zeros((width, width), np.bool_)
        for slot in range(width):
            sees[slot, self.path(slot)] = True
        depth = [len(self.path(slot)) - 1 for slot in range(width)]
        return Window(
            token_ids=np.array(ids, np.int32),
            positions=np.array(depth, np.int32) + np.int32(history),
            mask=pack_mask(sees),
            history_length=history,
            head_slots=np.arange(width, dtype=np.int32),
        )


def output_bits(output: StepOutput, row: int) -> tuple[bytes, ...]:
    """Bits of one output row."""
    parts = [output.token_ids[row].tobytes(), output.probability[row].tobytes()]
    if output.logits is not None:
        parts.append(output.logits[row].tobytes())
    return tuple(parts)
