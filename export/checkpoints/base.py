"""What every checkpoint offers, whatever its file format and model family.

A checkpoint is read in row blocks under the tensor names of the Hugging Face layout; a format
(GGUF, safetensors folder) is one subclass of :class:`Checkpoint`, and a family is one module of
this package that defines ``FAMILIES``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.errors import UserError

from .rotary import Rope

if TYPE_CHECKING:
    from .text_assets import TextAssets

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"
MASK_EMBEDDINGS = "model.mask_embeddings.weight"


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of a decoder.

    context: positions the checkpoint was made for. longest_context: what rotary scaling stretches
    it to, at least ``context``. tied: the head is the embedding table. qkv_bias, qk_norm: whether
    the optional attention inputs exist.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    context: int
    longest_context: int
    epsilon: float
    rope: Rope
    tied: bool
    activation: str = "silu"
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class Stack:
    """Checkpoint tensors whose rows follow each other in one tensor of the bundle.

    parts: (checkpoint name, rows). width: columns of each part; 0 where the parts are vectors.
    """

    parts: tuple[tuple[str, int], ...]
    width: int = 0

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.parts)

    def runs(self, block_rows: int) -> Iterator[tuple[int, list[tuple[str, int, int]]]]:
        """Blocks of ``block_rows`` rows: (first row, the checkpoint rows it is made of as (name,
        first, last + 1)).
        """
        for first in range(0, self.rows, block_rows):
            last = min(first + block_rows, self.rows)
            found, start = [], 0
            for name, rows in self.parts:
                low, high = max(first - start, 0), min(last - start, rows)
                if low < high:
                    found.append((name, low, high))
                start += rows
            yield first, found


@dataclass(frozen=True)
class LayerTensors:
    """One layer's tensors by their names in the bundle (``layers.N.<name>``)."""

    linears: Mapping[str, Stack]
    vectors: Mapping[str, Stack]


@dataclass(frozen=True)
class Family:
    """One kind of model.

    name: Hugging Face ``model_type`` and GGUF ``general.architecture``. architecture: the Hugging
    Face class. read: config values -> :class:`ModelConfig`. layer: (config, layer index) -> its
    tensors. gguf_interleaves_rotary: the GGUF converter stores the rows of each Q and K head as
    pairs (0, D/2, 1, D/2+1, ...).
    """

    name: str
    architecture: str
    read: Callable[[RawConfig], ModelConfig]
    layer: Callable[[ModelConfig, int], LayerTensors]
    gguf_interleaves_rotary: bool = False


class RawConfig:
    """Config values under Hugging Face keys, read with one-line complaints. ``where`` names the
    file for messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def get(self, key: str) -> Any:
        """The value, or None where the key is missing or null."""
        return self.values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; UserError if it is missing without a default, or is anything else."""
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(key, "a positive integer", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number; UserError if it is missing without a default, or is anything
        else.
        """
        value = self.values.get(key)
        value = default if value is None else value
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not 0 < value < float("inf")
        ):
            raise self._wrong(key, "a positive number", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean; UserError if it is anything else."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def block(self, key: str) -> RawConfig | None:
        """A nested block of values, or None where it is missing, null or empty."""
        value = self.values.get(key)
        if not value:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(key, "a block of values", value)
        return RawConfig(value, f"{self.where}: {key}")

    def refuse(self, key: str, *allowed: object) -> None:
        """UserError unless the value is missing, null or one of ``allowed``."""
        value = self.values.get(key)
        if value is not None and value not in allowed:
            expected = " or ".join(repr(item) for item in allowed) if allowed else "none"
            raise UserError(
                f"{self.where}: {key} is {value!r}, which is not supported (expected {expected})"
            )

    def _wrong(self, key: str, expected: str, value: object) -> UserError:
        found = "it is missing" if value is None else f"found {value!r}"
        return UserError(f"{self.where}: {key} must be {expected}; {found}")


class Checkpoint(ABC):
    """A model on disk. Use as a context manager, or call :meth:`close`."""

    family: Family
    config: ModelConfig
    where: str  # the file or folder, for messages
    name: str  # what to call the model

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of the tensor, row-major, or None where the checkpoint has none of that name."""

    @abstractmethod
    def tensor_rows(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        """Rows ``first`` to ``last - 1`` of a matrix, float32 [last - first, K]; rotary rows in
        half-split order.
        """

    @abstractmethod
    def vector(self, name: str) -> NDArray[np.float32]:
        """A vector, float32 [n]; rotary rows in half-split order."""

    @property
    @abstractmethod
    def text(self) -> TextAssets:
        """Tokenizer and chat template."""

    @abstractmethod
    def close(self) -> None:
        """Closes the files."""

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def check(self, stack: Stack) -> None:
        """UserError unless every part of ``stack`` exists in the expected shape."""
        for name, rows in stack.parts:
            expected = (rows, stack.width) if stack.width else (rows,)
            found = self.shape(name)
            if found is None:
                raise UserError(
                    f"{self.where}: tensor {name} is missing; the file is incomplete or of "
                    "another model"
                )
            if found != expected:
                raise UserError(
                    f"{self.where}: tensor {name} has shape {found}, expected {expected}"
                )

    def blocks(self, stack: Stack, block_rows: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """The matrix ``stack`` in blocks of ``block_rows`` rows: (first row, float32 [rows,
        width]).
        """
        for first, runs in stack.runs(block_rows):
            pieces = [self.tensor_rows(*run) for run in runs]
            yield first, pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def vectors(self, stack: Stack) -> NDArray[np.float32]:
        """The vectors of ``stack`` end to end, float32 [rows]. UserError where a value is not
        finite.
        """
        parts = []
        for name, _ in stack.parts:
            values = self.vector(name)
            if not np.isfinite(values).all():
                raise UserError(
                    f"{self.where}: tensor {name} holds values that are not finite (NaN or "
                    "infinity)"
                )
            parts.append(values)
        return np.concatenate(parts)
