"""Which tensors a bundle of nested weights has, in the order of weights.bin, and which checkpoint
tensors each comes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bitmtp_edge.layout import packed_shape, scales_shape
from bitmtp_edge.operators import Spec

from .checkpoints.base import EMBEDDING, FINAL_NORM, HEAD, Checkpoint, Stack
from .quantize.nested import group_size_for


@dataclass(frozen=True)
class ModelTensors:
    """matrices: dual-plane weights, and vectors: fp32, by their names in the bundle. positions:
    rows of the rotary table.
    """

    matrices: dict[str, Stack]
    vectors: dict[str, Stack]
    positions: int
    head_dim: int

    def specs(self) -> Iterator[tuple[str, Spec]]:
        """(name, (dtype, shape)) of every tensor; the planes of a matrix lie beside each other."""
        for name, stack in self.matrices.items():
            plane = packed_shape(stack.rows, stack.width, 4)
            yield f"{name}.base", ("int32", plane)
            yield f"{name}.refinement", ("int32", plane)
            scales = scales_shape(stack.rows, stack.width, group_size_for(stack.width))
            yield f"{name}.scales", ("float16", scales)
        for name, stack in self.vectors.items():
            yield name, ("float32", (stack.rows,))
        yield "rotary", ("float32", (self.positions, self.head_dim))


def model_tensors(checkpoint: Checkpoint, positions: int) -> ModelTensors:
    """The tensors of a model; a tied head is the embedding and is stored once.

    UserError where the checkpoint lacks one or has it in another shape.
    """
    config = checkpoint.config
    matrices: dict[str, Stack] = {}
    vectors: dict[str, Stack] = {}

    def add(group: dict[str, Stack], name: str, stack: Stack) -> None:
        checkpoint.check(stack)
        group[name] = stack

    add(matrices, "embedding", Stack(((EMBEDDING, config.vocab_size),), config.hidden_size))
    for index in range(config.num_layers):
        layer = checkpoint.family.layer(config, index)
        for name, stack in layer.linears.items():
            add(matrices, f"layers.{index}.{name}", stack)
        for name, stack in layer.vectors.items():
            add(vectors, f"layers.{index}.{name}", stack)
    add(vectors, "final_norm", Stack(((FINAL_NORM, config.hidden_size),)))
    if not config.tied:
        add(matrices, "head", Stack(((HEAD, config.vocab_size),), config.hidden_size))
    return ModelTensors(matrices, vectors, positions, config.head_dim)
