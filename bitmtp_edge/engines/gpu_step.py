"""What goes into a step on a GPU and what comes out of it, on the device and on the host."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..operators import Spec
from . import abi
from .base import ReplayState, StagedWindow, StepOutput
from .gpu_device import Block, GpuDevice, HostBlock
from .gpu_library import StepLibrary
from .operator_records import DeviceArray
from .step_layout import in_a_row, input_specs

Placed = tuple[Block, DeviceArray]

TURNS = 2  # steps at most whose outputs the host has not taken


def placed(
    block: Block, specs: Mapping[str, Spec], offsets: Mapping[str, int]
) -> dict[str, Placed]:
    """The tensors ``specs`` at their ``offsets`` in ``block``."""
    return {
        name: (block, DeviceArray(block.address + offsets[name], dtype, shape))
        for name, (dtype, shape) in specs.items()
    }


def host_arrays(
    block: HostBlock, specs: Mapping[str, Spec], offsets: Mapping[str, int]
) -> dict[str, NDArray[Any]]:
    return {
        name: np.frombuffer(block.array, dtype, math.prod(shape), offsets[name]).reshape(shape)
        for name, (dtype, shape) in specs.items()
    }


class StepInputBlock:
    """The inputs of every step, laid out for the widest window so that no graph's addresses change:
    page-locked on the host, and on the device."""

    def __init__(self, device: GpuDevice, library: StepLibrary, max_width: int) -> None:
        self._library = library
        self._stream = device.stream
        specs = input_specs(max_width, max_width)
        offsets, size = in_a_row(specs)
        self._block = device.allocate(size, "the inputs of a step")
        self._host = device.pinned(size)
        self.tensors = placed(self._block, specs, offsets)
        self.host = host_arrays(self._host, specs, offsets)
        self._prefix = (ctypes.c_int32 * abi.STAGE_TOKENS)()
        self._drafts = (ctypes.c_void_p * 1)()
        self._count = (ctypes.c_int32 * 1)()
        self._record = abi.StageArgs(
            prefix=ctypes.addressof(self._prefix),
            outputs=ctypes.addressof(self._drafts),
            output_rows=ctypes.addressof(self._count),
            output_count=1,
            top_k=1,
            **{name: array.address for name, (_, array) in self.tensors.items()},
        )

    def send(self) -> None:
        """Enqueues the copy of the host's inputs to the device."""
        self._library.send(self._host, self._block, self._stream)

    def stage(self, state: ReplayState, window: StagedWindow, drafts: DeviceArray | None) -> None:
        """Enqueues the making of a causal window. drafts: int32[h, k], of which it takes the best
        tokens; None where it takes none."""
        record, prefix = self._record, window.prefix  # the call reads both
        self._prefix[: len(prefix)] = list(prefix)
        if drafts is not None:
            self._drafts[0] = drafts.address
            record.top_k = drafts.shape[1]
        self._count[0] = window.taken
        record.history = window.history_length
        record.kv4_history = window.kv4_length
        record.prefix_rows = len(prefix)
        record.M = state.width
        record.h = state.outputs
        record.heads = window.heads
        record.two_way = window.two_way
        self._library.stage(record, self._stream)


class StepOutputBlock:
    """The outputs of a step, on the device and on the host, where steps take turns of ``hosts``.

    specs: of "next_token_ids", "probability" and, in the sampling variant, "logits", in this order.
    offsets: where each lies in ``block`` and in each of ``hosts``, which are of one size.
    """

    def __init__(
        self,
        library: StepLibrary,
        stream: int,
        block: Block,
        hosts: Sequence[HostBlock],
        specs: Mapping[str, Spec],
        offsets: Mapping[str, int],
    ) -> None:
        self._library = library
        self._stream = stream
        self._block = block
        self._hosts = hosts
        self._arrays = [tuple(host_arrays(host, specs, offsets).values()) for host in hosts]
        self.tensors = {name: array for name, (_, array) in placed(block, specs, offsets).items()}

    def fetch(self, turn: int) -> None:
        """Enqueues the copy of the outputs to the host."""
        self._library.fetch(self._block, self._hosts[turn], self._stream)

    def output(self, turn: int) -> StepOutput:
        """The outputs that were fetched in ``turn``, as the caller's own arrays."""
        return StepOutput(*[array.copy() for array in self._arrays[turn]])
