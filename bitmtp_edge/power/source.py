"""What every power sensor gives: a reading of named rails, and which of them is the total."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from ..errors import UserError

# Rails that feed the whole board: VDD_IN on Orin NX and Nano, POM_5V_IN on older modules, VIN on
# Thor. Whatever else a board measures lies behind such a rail, so nothing is added to it.
BOARD_INPUTS = ("VDD_IN", "POM_5V_IN", "VIN")

# Rails that only boards with such an input have, to its name.
_BEHIND = {"VDD_CPU_GPU_CV": "VDD_IN", "POM_5V_CPU": "POM_5V_IN", "POM_5V_GPU": "POM_5V_IN"}

UNCONNECTED = "NC"

_MOST_MW = 1e6  # of a board, or of one of its rails


class SourceError(UserError):
    """Why a power source cannot be used, or did not give this one reading."""


class NoTotal(SourceError):
    """The board has an input rail that gives no value: its other rails are not its total."""

    def __init__(self, rail: str, why: str) -> None:
        super().__init__(
            f"{rail}, which feeds the whole board, gives no value ({why}), "
            "and the other rails are not the total"
        )


@dataclass(frozen=True)
class Reading:
    """One reading.

    at: seconds of ``time.monotonic``, when the sensor was read (of a pushed value: when it came).
    rails: name to mW, in the sensor's order. total_mw, total_is: the rail that is the total, or
    "sum of" the rails named. joules: an energy counter that comes with every reading; its zero
    means nothing.
    """

    at: float
    rails: Mapping[str, float]
    total_mw: float
    total_is: str
    source: str
    joules: float | None = None


@dataclass(frozen=True)
class Where:
    """Where sources look. root: the folder that holds ``sys``, ``etc`` and ``var``.
    tegrastats: a file of tegrastats lines, read in place of the command's output. gpu: index or
    UUID of the GPU that NVML is asked for; None is the first that CUDA_VISIBLE_DEVICES names.
    first_within_s: how long a process that has to be started may take for its first answer."""

    root: Path = Path("/")
    tegrastats: Path | None = None
    gpu: str | None = None
    first_within_s: float = 0.9

    def must_be_live(self) -> None:
        """SourceError where ``root`` is another folder than ``/``, for a source that has none."""
        if self.root.resolve() != Path("/"):
            raise SourceError(f"it reads this machine, not {self.root}")


class Source(ABC):
    """A power sensor, opened. ``Kind(where)`` opens it, or raises SourceError with the reason.

    poll_s: seconds between two reads of a meter. update_s: after which the sensor has a new value
    at the latest. counter_only: its power is a quotient of its counter, not measured beside it.
    """

    name: ClassVar[str]
    poll_s: float
    update_s: float
    counter_only: ClassVar[bool] = False

    @abstractmethod
    def read(self) -> Reading:
        """The newest reading. SourceError if there is none, or the sensor's value is impossible."""

    def counter(self) -> float | None:
        """Joules of an energy counter that is too dear for every reading; None: there is none.

        It moves once in ``update_s``. SourceError where it cannot be read.
        """
        return None

    def close(self) -> None:
        """Gives back what the source holds; more than once is no fault."""
        return

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def board_reading(
        self, rails: Mapping[str, float], at: float | None = None, board: str | None = None
    ) -> Reading:
        """``rails`` in mW as a reading whose total is the board's input, or a labelled sum.

        board: the input rail, where the sensor names it. SourceError where the total is not above
        zero: a board that reads it draws power. Nor is it believed that one draws a kilowatt.
        NoTotal where rails are of a board with an input that is not among them.
        """
        if not rails:
            raise SourceError("no power rail is told")
        for name, milliwatts in rails.items():
            if not abs(milliwatts) <= _MOST_MW:
                raise SourceError(f"{name} reads {milliwatts:g} mW, which cannot be")
        board = board or next((name for name in BOARD_INPUTS if name in rails), None)
        if board is None:
            for name in rails:
                if name in _BEHIND:
                    raise NoTotal(_BEHIND[name], f"{name} is told, and it is not")
            total, label = sum(rails.values()), "sum of " + ", ".join(rails)
        else:
            total, label = rails[board], board
        if not 0 < total <= _MOST_MW:
            raise SourceError(f"the total ({label}) reads {total:g} mW, which cannot be")
        return Reading(time.monotonic() if at is None else at, rails, total, label, self.name)
