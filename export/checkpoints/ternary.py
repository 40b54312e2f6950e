"""Checkpoints whose weights were trained as ternary codes: a bundle keeps these codes as they are.

A format of such checkpoints is one subclass of :class:`TernaryCheckpoint`; the fp32 view that every
checkpoint offers is then codes times scales.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .base import Checkpoint, Stack


class Codes(NamedTuple):
    """Rows of a quantised matrix: codes int8 [rows, K], scales fp16 [rows, G]."""

    codes: NDArray[np.int8]
    scales: NDArray[np.float16]


@dataclass(frozen=True)
class CodeFormat:
    """kind: "ternary" or "int8". group_size: columns that share a scale; 0: all of a row."""

    kind: str
    group_size: int


@dataclass(frozen=True)
class MultiToken:
    """What a model trained for multi-token drafts was trained with (BitMTP section 3.2).

    block: D, tokens of a block, the anchor's included. attention: inside a block, "causal" or
    "full". masks: rows of the mask embeddings.
    """

    block: int
    attention: str
    masks: int


class TernaryCheckpoint(Checkpoint):
    """A checkpoint of ternary linears, and an embedding and a head of a kind that operators take.

    multi_token: None where the model was trained for next tokens alone.
    """

    multi_token: MultiToken | None

    @abstractmethod
    def code_format(self, name: str) -> CodeFormat:
        """How the matrix ``name`` is stored."""

    @abstractmethod
    def codes(self, name: str, first: int, last: int) -> Codes:
        """Rows ``first`` to ``last - 1`` of a matrix as they are stored, a scale of the whole
        tensor repeated a row. UserError for codes or scales that are none.
        """

    def code_blocks(self, stack: Stack, block_rows: int) -> Iterator[tuple[int, Codes]]:
        """The matrix ``stack`` in blocks of ``block_rows`` rows: (first row, codes)."""
        for first, runs in stack.runs(block_rows):
            pieces = [self.codes(*run) for run in runs]
            yield (
                first,
                Codes(
                    np.concatenate([piece.codes for piece in pieces]),
                    np.concatenate([piece.scales for piece in pieces]),
                ),
            )
