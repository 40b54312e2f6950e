"""What an engine of ours keeps of a step: its tensors, how long each lives, and how a window comes
in.

An engine lays a graph's tensors out once, for the widest window; a narrower one uses the first
elements of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..operators import OPERATORS, STEP_INPUTS, STEP_OUTPUTS, Node, Spec
from .arena import ALIGNMENT, Lifetime
from .base import ReplayState, Window


def input_specs(m: int, h: int) -> dict[str, Spec]:
    """The step's inputs for ``m`` slots and ``h`` outputs, KV history apart."""
    return {
        "token_ids": ("int32", (m,)),
        "positions": ("int32", (m,)),
        "mask": ("int32", (m, -(-m // 32))),
        "history_length": ("int32", (1,)),
        "kv4_length": ("int32", (1,)),
        "head_slots": ("int32", (h,)),
    }


def tensor_specs(
    nodes: Sequence[Node], m: int, h: int, kv_rows: Collection[str], logits: bool
) -> dict[str, Spec]:
    """Every tensor of a step of ``nodes`` but weights, history and the new rows ``kv_rows``."""
    specs = input_specs(m, h)
    for node in nodes:
        made = OPERATORS[node.op].output_specs(node.attributes, m, h)
        for name, spec in zip(node.outputs, made, strict=False):
            if name and name not in kv_rows and (name != "logits" or logits):
                specs[name] = spec
    return specs


def lifetimes(nodes: Sequence[Node], specs: Mapping[str, Spec], keep: bool) -> dict[str, Lifetime]:
    """Lifetime of every tensor; inputs and outputs live throughout, as all do with ``keep``."""
    first: dict[str, int] = dict.fromkeys(STEP_INPUTS, 0)
    last: dict[str, int] = {}
    for step, node in enumerate(nodes):
        for name in node.outputs:
            first.setdefault(name, step)
            last[name] = step
        for name in node.inputs:
            last[name] = step
    end = len(nodes)
    whole = {*STEP_INPUTS, *STEP_OUTPUTS}
    found = {}
    for name, spec in specs.items():
        always = keep or name in whole
        found[name] = Lifetime(
            spec_bytes(spec), 0 if always else first[name], end if always else last[name]
        )
    return found


def spec_bytes(spec: Spec) -> int:
    dtype, shape = spec
    return math.prod(shape) * np.dtype(dtype).itemsize


def in_a_row(specs: Mapping[str, Spec]) -> tuple[dict[str, int], int]:
    """Offsets of tensors that lie one after another, and the end; all multiples of 256."""
    offsets, end = {}, 0
    for name, spec in specs.items():
        offsets[name] = end
        end += -(-spec_bytes(spec) // ALIGNMENT) * ALIGNMENT
    return offsets, end


def narrowed(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The tensor of a narrower window, whose shape is ``shape``, in that of the widest."""
    return array.reshape(-1)[: math.prod(shape)].reshape(shape)


class StepInputs:
    """The host's side of a replay state's inputs. ``arrays``: those of the widest window."""

    def __init__(self, state: ReplayState, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._state = state
        specs = input_specs(state.width, state.outputs)
        own = {name: narrowed(arrays[name], shape) for name, (_, shape) in specs.items()}
        self._token_ids = own["token_ids"]
        self._positions = own["positions"]
        self._mask = own["mask"]
        self._history_length = own["history_length"]
        self._kv4_length = own["kv4_length"]
        self._head_slots = own["head_slots"]

    def take(self, window: Window) -> None:
        """Copies the step's inputs. ValueError where they are not of this state's shape, or a head
        slot is none of the window's: the kernels read the rows that these name."""
        if (
            window.token_ids.shape != self._token_ids.shape
            or window.positions.shape != self._positions.shape
            or window.mask.shape != self._mask.shape
            or window.head_slots.shape != self._head_slots.shape
        ):
            raise ValueError(f"the window is not one of {self._state}")
        slots = window.head_slots.tolist()
        if not 0 <= min(slots) <= max(slots) < self._state.width:
            raise ValueError(f"head slots {slots} are not slots of {self._state.width}")
        self._token_ids[:] = window.token_ids
        self._positions[:] = window.positions
        self._mask[:] = window.mask
        self._history_length[0] = window.history_length
        self._kv4_length[0] = window.kv4_length
        self._head_slots[:] = window.head_slots


def check_state(state: ReplayState, segment: int, max_width: int) -> None:
    """ValueError for a state that the KV buffer of ``segment`` rows in use cannot serve."""
    if state.segment != segment:
        raise ValueError(f"segment {state.segment} is not in use ({segment} is)")
    if not 1 <= state.width <= max_width:
        raise ValueError(f"width {state.width} is not 1 .. {max_width}, the workspace")
    if not 1 <= state.outputs <= max_width:
        raise ValueError(f"{state.outputs} head slots, expected 1 .. {max_width}")


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


Block = TypeVar("Block", bound=_Sized)


class SharedBlock(Generic[Block]):
    """Memory that all plans use, since only one of them runs at a time. Where one needs a larger
    block, those made before keep the one they have. allocate: makes a block of some bytes."""

    def __init__(self, allocate: Callable[[int], Block]) -> None:
        self._allocate = allocate
        self._block = allocate(0)

    def of(self, size: int) -> Block:
        if size > self._block.size:
            self._block = self._allocate(size)
        return self._block
