"""Activation smoothing: moves outlier channels of a linear's input into its weights.

Per-token int8 spends its range on a row's largest value, so one loud channel silences the rest.
Behind a norm the cure is free: the norm's weight is multiplied by r and the columns of the linears
that read it are divided by r, which leaves their product as it was. With r = sqrt(column norm /
largest activation) activations and weights share the burden (SmoothQuant, Xiao et al. 2023, alpha
0.5). On SmolLM2 this takes most of the int8 loss of these inputs, and helps the W4 base too.

The largest activations come from a short text of ours run through the fp32 model (calibration.txt).
The same run gives each channel's mean square, by which the quantiser weighs the base's error.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.progress import Progress
from bitmtp_edge.text.tokenizer import Tokenizer

from ..checkpoints.base import EMBEDDING, FINAL_NORM, HEAD, Checkpoint, Stack
from ..checkpoints.text_assets import TextAssets
from ..reference_model import Floats, column_squares, run_layers

CALIBRATION_TOKENS = 640
_LONGEST = 2.0**8  # bounds r, so that scales stay in fp16's range
_STEPS = 8  # r is rounded to this many steps an octave: small differences of sums do not show in it

# The norm in front of each smoothed linear.
_NORM_OF = {"qkv": "attention_norm", "gate_up": "mlp_norm"}


def smooth(checkpoint: Checkpoint) -> SmoothedCheckpoint:
    """The same function as ``checkpoint`` with smoothed inputs of the linears behind a norm.

    Shows progress. Closing it closes the checkpoint. A tied head stays as it is: its columns are
    the embedding's.
    """
    tokens = _calibration_tokens(checkpoint)
    rows: dict[str, Floats] = {}  # norm name -> r
    columns: dict[str, Floats] = {}  # matrix name -> r
    importance: dict[str, Floats] = {}  # matrix name -> mean square of its smoothed input

    def observe(layer: int, name: str, x: Floats, squares: NDArray[np.float64]) -> None:
        tensors = checkpoint.family.layer(checkpoint.config, layer)
        norm = tensors.vectors[_NORM_OF[name]] if name in _NORM_OF else None
        note(norm, tensors.linears[name], x, squares)

    def note(norm: Stack | None, linear: Stack, x: Floats, squares: NDArray[np.float64]) -> None:
        mean_square = np.square(x).mean(axis=0, dtype=np.float32)
        names = [name for name, _ in linear.parts]
        if norm is not None:
            ratio = smoothing_ratio(np.abs(x).max(axis=0), squares)
            rows[norm.parts[0][0]] = ratio
            columns.update(dict.fromkeys(names, ratio))
            mean_square *= np.square(ratio)
        importance.update(dict.fromkeys(names, mean_square))

    # Weights that are not finite are the quantiser's to report, with their tensor's name.
    with (
        np.errstate(all="ignore"),
        Progress(checkpoint.config.num_layers, "calibrate", "layers") as p,
    ):
        last = run_layers(checkpoint, [tokens], observe=observe, on_layer=p.advance)
    config = checkpoint.config
    head = Stack(((EMBEDDING if config.tied else HEAD, config.vocab_size),), config.hidden_size)
    norm = None if config.tied else Stack(((FINAL_NORM, config.hidden_size),))
    note(norm, head, last, column_squares(checkpoint, head))
    return SmoothedCheckpoint(checkpoint, rows, columns, importance)


def smoothing_ratio(largest: Floats, squares: NDArray[np.float64]) -> Floats:
    """r fp32 [K] from the largest activation and the squared column norm of each channel.

    Around a geometric mean of 1, and 1 for a channel that carries nothing or nothing finite.
    """
    carries = np.isfinite(largest) & (largest > 0) & np.isfinite(squares) & (squares > 0)
    octaves = np.zeros(largest.shape)
    octaves[carries] = np.log2(np.sqrt(np.sqrt(squares[carries]) / largest[carries]))
    octaves[carries] -= octaves[carries].mean() if carries.any() else 0.0
    octaves = np.rint(octaves * _STEPS) / _STEPS
    return np.exp2(np.clip(octaves, -np.log2(_LONGEST), np.log2(_LONGEST))).astype(np.float32)


def _calibration_tokens(checkpoint: Checkpoint) -> list[int]:
    text = (importlib.resources.files(__package__) / "calibration.txt").read_text(encoding="utf-8")
    tokenizer = Tokenizer(checkpoint.text.tokenizer_json, origin=checkpoint.where)
    tokens = tokenizer.encode(text, parse_special=False, add_special=True)
    known = [token for token in tokens if token < checkpoint.config.vocab_size]
    return known[: min(CALIBRATION_TOKENS, checkpoint.config.context)] or [0]


class SmoothedCheckpoint(Checkpoint):
    """A checkpoint seen through row factors of vectors and column divisors of matrices."""

    def __init__(
        self,
        source: Checkpoint,
        rows: Mapping[str, Floats],
        columns: Mapping[str, Floats],
        importance: Mapping[str, Floats],
    ) -> None:
        self._source, self._rows, self._columns = source, rows, columns
        self._importance = importance
        self.family, self.config = source.family, source.config
        self.where, self.name = source.where, source.name

    def importance(self, stack: Stack) -> Floats | None:
        """Mean square of each channel that the matrix reads, fp32 [K]; None for one that multiplies
        nothing (an embedding beside a separate head)."""
        return self._importance.get(stack.parts[0][0])

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self._source.shape(name)

    def tensor_rows(self, name: str, first: int, last: int) -> Floats:
        rows = self._source.tensor_rows(name, first, last)
        ratio = self._columns.get(name)
        return rows if ratio is None else rows / ratio

    def vector(self, name: str) -> Floats:
        values = self._source.vector(name)
        ratio = self._rows.get(name)
        return values if ratio is None else values * ratio

    @property
    def text(self) -> TextAssets:
        return self._source.text

    def close(self) -> None:
        self._source.close()
