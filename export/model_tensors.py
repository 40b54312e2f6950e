"""Which tensors a bundle has, in the order of weights.bin, and which checkpoint tensors each comes
from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bitmtp_edge.bundle import MASK_TABLE
from bitmtp_edge.errors import UserError
from bitmtp_edge.layout import CODE_BITS, packed_shape, scales_shape
from bitmtp_edge.operators import Spec

from .checkpoints.base import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    Checkpoint,
    LayerTensors,
    ModelConfig,
    Stack,
)
from .checkpoints.ternary import TernaryCheckpoint
from .quantize.nested import group_size_for


@dataclass(frozen=True)
class Matrix:
    """A packed weight. kind: "dual" (a base and a refinement plane), "ternary" or "int8".
    group_size: columns that share a scale; 0: all of a row.
    """

    stack: Stack
    kind: str
    group_size: int

    @property
    def planes(self) -> tuple[str, ...]:
        """Suffixes of its code tensors' names."""
        return ("base", "refinement") if self.kind == "dual" else (self.kind,)

    def specs(self) -> Iterator[tuple[str, Spec]]:
        """(suffix, (dtype, shape)) of each of its tensors."""
        rows, width = self.stack.rows, self.stack.width
        for plane in self.planes:
            yield plane, ("int32", packed_shape(rows, width, CODE_BITS[self.kind]))
        yield "scales", ("float16", scales_shape(rows, width, self.group_size))


@dataclass(frozen=True)
class ModelTensors:
    """matrices: packed weights, and vectors: fp32, by their names in the bundle. masks: rows of
    the mask embeddings, fp32 [masks, hidden_size]. positions: rows of the rotary table.
    """

    matrices: dict[str, Matrix]
    vectors: dict[str, Stack]
    masks: int
    hidden_size: int
    positions: int
    head_dim: int

    def specs(self) -> Iterator[tuple[str, Spec]]:
        """(name, (dtype, shape)) of every tensor; the planes of a matrix lie beside each other."""
        for name, matrix in self.matrices.items():
            for suffix, spec in matrix.specs():
                yield f"{name}.{suffix}", spec
        for name, stack in self.vectors.items():
            yield name, ("float32", (stack.rows,))
        if self.masks:
            yield MASK_TABLE, ("float32", (self.masks, self.hidden_size))
        yield "rotary", ("float32", (self.positions, self.head_dim))


def collect(
    config: ModelConfig,
    layer: Callable[[ModelConfig, int], LayerTensors],
    matrix: Callable[[Stack], Matrix],
    masks: int,
    positions: int,
) -> ModelTensors:
    """The tensors of a model of ``config``, whose layers have those that ``layer`` names and whose
    weights are packed as ``matrix`` says; a tied head is the embedding and is stored once.
    """
    matrices = {"embedding": matrix(Stack(((EMBEDDING, config.vocab_size),), config.hidden_size))}
    vectors: dict[str, Stack] = {}
    for index in range(config.num_layers):
        found = layer(config, index)
        for name, stack in found.linears.items():
            matrices[f"layers.{index}.{name}"] = matrix(stack)
        for name, stack in found.vectors.items():
            vectors[f"layers.{index}.{name}"] = stack
    vectors["final_norm"] = Stack(((FINAL_NORM, config.hidden_size),))
    if not config.tied:
        matrices["head"] = matrix(Stack(((HEAD, config.vocab_size),), config.hidden_size))
    return ModelTensors(matrices, vectors, masks, config.hidden_size, positions, config.head_dim)


def model_tensors(checkpoint: Checkpoint, positions: int) -> ModelTensors:
    """The tensors of a checkpoint's model.

    UserError where the checkpoint lacks one, has it in another shape or dtype, or has more layers.
    """
    config, family = checkpoint.config, checkpoint.family

    def matrix(stack: Stack) -> Matrix:
        checkpoint.check(stack)
        return _matrix(checkpoint, stack)

    multi_token = checkpoint.multi_token if isinstance(checkpoint, TernaryCheckpoint) else None
    masks = multi_token.masks if multi_token else 0
    tensors = collect(config, family.layer, matrix, masks, positions)
    for stack in tensors.vectors.values():
        checkpoint.check(stack)
    beyond = family.layer(config, config.num_layers).linears["down"].parts[0][0]
    if checkpoint.shape(beyond) is not None:
        raise UserError(
            f"{checkpoint.where}: the config gives {config.num_layers} layers, and there is a "
            f"tensor {beyond}: config and weights belong to different models"
        )
    return tensors


def _matrix(checkpoint: Checkpoint, stack: Stack) -> Matrix:
    if not isinstance(checkpoint, TernaryCheckpoint):
        return Matrix(stack, "dual", group_size_for(stack.width))
    stored = checkpoint.code_format(stack.parts[0][0])
    return Matrix(stack, stored.kind, stored.group_size)
