"""The contract between decoding and engines: one fixed-shape step (docs/architecture.md).

Everything above it (``decode/``) is Python on small arrays; everything below it knows nothing of
policies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError

Role = Literal["draft", "verify"]


class NotBuilt(UserError):
    """An engine that works here, and for which nothing was built that a bundle's steps need."""


@dataclass(frozen=True)
class ReplayState:
    """What fixes the shape of a step: one captured graph, TensorRT engine or CPU plan each.

    width: window slots M. outputs: head slots h. segment: history capacity in rows. role: which
    weights and KV view are read. logits: the sampling variant, which also returns every logit.
    """

    width: int
    outputs: int
    segment: int
    role: Role
    logits: bool = False


@dataclass(frozen=True)
class Window:
    """The M token slots of one step.

    token_ids int32[M] (-1-i is row i of ``mask_embeddings``); positions int32[M]; mask int32[M,
    ceil(M/32)], bit j of row i: slot i attends slot j, itself included; history_length: rows of
    history every slot attends; head_slots int32[h]: the slots that need an output; mask_embeddings
    fp32[P, K] or None; kv4_length: history rows below it are read from the KV base plane alone
    (draft role only).
    """

    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    mask: NDArray[np.int32]
    history_length: int
    head_slots: NDArray[np.int32]
    mask_embeddings: NDArray[np.float32] | None = None
    kv4_length: int = 0


@dataclass(frozen=True)
class StepOutput:
    """token_ids int32[h, k], best first; probability fp32[h, k]; logits fp32[h, V] in the sampling
    variant, else None.

    The arrays are the caller's: a later step does not change them.
    """

    token_ids: NDArray[np.int32]
    probability: NDArray[np.float32]
    logits: NDArray[np.float32] | None = None


class PendingOutput(StepOutput):
    """The output of a step that may still run. The first look at an array waits for it: ``wait``
    gives the output once the step has ended."""

    def __init__(self, wait: Callable[[], StepOutput]) -> None:
        object.__setattr__(self, "_wait", wait)

    @property
    def _output(self) -> StepOutput:
        own = self.__dict__  # no cached_property: before Python 3.12 that takes a lock
        output: StepOutput | None = own.get("_ended")
        if output is None:
            output = own["_ended"] = own["_wait"]()
        return output

    @property
    def token_ids(self) -> NDArray[np.int32]:
        return self._output.token_ids

    @property
    def probability(self) -> NDArray[np.float32]:
        return self._output.probability

    @property
    def logits(self) -> NDArray[np.float32] | None:
        return self._output.logits


class StagedWindow(NamedTuple):
    """A causal window for the device to make, of tokens that the host knows and of others that it
    need not have read.

    Behind ``history_length`` rows of history come ``prefix``, ids as in a :class:`Window`, and the
    best tokens of the first ``taken`` rows of ``drafts``, which the last step started; None where
    there are none. The last ``heads`` rows have an output, and the last ``two_way`` rows also see
    each other. kv4_length: as of a :class:`Window`.
    """

    prefix: Sequence[int]
    history_length: int
    drafts: StepOutput | None
    taken: int
    heads: int
    kv4_length: int = 0
    two_way: int = 0

    @property
    def rows(self) -> int:
        return len(self.prefix) + self.taken


class StagedStep(ABC):
    """A step whose window lies ready on the device."""

    @abstractmethod
    def start(self) -> StepOutput:
        """Runs the step, as :meth:`Engine.start` does, and need not wait for the one before.
        ValueError where the engine has begun another one since it was staged."""


class Engine(ABC):
    """Runs the steps of one sequence over one KV buffer. Use as a context manager, or call
    :meth:`close`."""

    name: str
    stages = False
    """Whether it makes windows on the device: see :meth:`stage`."""

    @property
    @abstractmethod
    def segment(self) -> int:
        """Capacity, in history rows, of the KV buffer in use."""

    @abstractmethod
    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        """Runs one step. The new K/V rows of the M slots lie in the workspace until the next
        replay."""

    def start(self, state: ReplayState, window: Window) -> StepOutput:
        """As :meth:`replay`, but may return before the step has ended: then the first look at the
        output waits for it. Promotions and other steps may follow at once."""
        return self.replay(state, window)

    def stage(self, state: ReplayState, window: StagedWindow) -> StagedStep | None:
        """Makes ``window`` on the device, before the host reads its drafts (BitMTP's hoisted
        verifier preparation). None where such a window is to be made on the host.
        ValueError for one that is none of ``state``."""
        return None

    def start_staged(self, state: ReplayState, window: StagedWindow) -> StepOutput | None:
        """:meth:`stage` and the start of that step at once."""
        staged = self.stage(state, window)
        return None if staged is None else staged.start()

    @abstractmethod
    def promote(self, rows: Sequence[int], at: int) -> None:
        """Copies workspace rows ``rows`` of the last replay to history rows ``at, at+1, ...``."""

    @abstractmethod
    def grow(self, segment: int, rows: int) -> None:
        """Moves to a KV buffer of ``segment`` history rows, copying the first ``rows``; the
        workspace is not copied."""

    @property
    def threads(self) -> int | None:
        """Threads that a step runs on; None if the engine does not tell."""
        return None

    @property
    def device(self) -> str | None:
        """What steps run on, where that is not the processor."""
        return None

    @property
    def gpu(self) -> str | None:
        """The UUID of :attr:`device`, as the driver's tools have it; None where nobody tells."""
        return None

    def memory(self) -> dict[str, int]:
        """Bytes in use, by what for: "weights", "kv", "arena" (the tensors of a step), "workspace";
        and "device", all that is taken of a device's memory, captured graphs and others' use of it
        included. Empty from an engine that does not tell."""
        return {}

    def tensors(self) -> dict[str, NDArray[Any]] | None:
        """Every tensor of the last replay by name, weights apart; None if they were not kept."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Frees memory and threads. The engine is not usable afterwards."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def visible_slots(window: Window, row: int) -> list[int]:
    """Slots that slot ``row`` attends, ascending."""
    words = window.mask[row].view(np.uint32)
    return [
        j
        for j in range(window.token_ids.size)
        if words[j // 32] >> np.uint32(j % 32) & np.uint32(1)
    ]


def check_window(
    state: ReplayState, window: Window, masks: int = 0, full_blocks: bool = False
) -> None:
    """Debug check of the contract: shapes, ids, and that every row sees each position of its
    context exactly once.

    masks: mask embeddings P of the model. A mask, an id below 0, stands in the draft role only, and
    no token sees one. full_blocks: a mask also sees the later masks of its window.

    Raises AssertionError: a broken window is a fault of the caller, not of a user.
    """
    width = state.width
    assert window.token_ids.shape == window.positions.shape == (width,), (
        "token_ids and positions are [M]"
    )
    assert window.mask.shape == (width, -(-width // 32)), "mask is [M, ceil(M/32)]"
    assert window.head_slots.shape == (state.outputs,), "head_slots is [h]"
    assert 0 <= window.history_length <= state.segment, "history lies within its segment"
    assert state.role == "draft" or window.kv4_length == 0, "the verify role reads KV8"
    assert ((window.head_slots >= 0) & (window.head_slots < width)).all(), (
        "head slots are window slots"
    )
    is_mask = window.token_ids < 0
    assert (window.token_ids >= -masks).all(), f"masks have ids -1 .. {-masks}"
    assert state.role == "draft" or not is_mask.any(), "the verify role has no masks"
    for row in range(width):
        slots = visible_slots(window, row)
        seen = [int(window.positions[slot]) for slot in slots]
        last = int(window.positions[row])
        if full_blocks and is_mask[row]:
            last = int(window.positions[is_mask].max())
        expected = list(range(window.history_length, last + 1))
        assert seen == expected, f"slot {row} sees positions {seen}, expected {expected}"
        assert row in slots, f"slot {row} does not see itself"
        assert is_mask[row] or not is_mask[slots].any(), f"slot {row}, a token, sees a mask"
