"""jetson-stats, where the user has it and its service runs."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .child import LineProcess
from .source import BOARD_INPUTS, UNCONNECTED, Reading, Source, SourceError, Where
from .sysfs import integer

PERIOD_S = 1.0  # of the service, unless somebody asked it for another
SILENT_S = 3 * PERIOD_S

_USB_SUPPLY = "ucsi"  # USB-C supplies, which jetson-stats lists among the rails and sums with them
_DISAGREES = 0.1


class Jtop(Source):
    """The dictionary ``jtop.power``, asked for in a process of its own (see ``jtop_child``)."""

    name = "jtop"

    def __init__(self, where: Where) -> None:
        where.must_be_live()
        self.poll_s = PERIOD_S / 4
        self.update_s = PERIOD_S
        self._first_within_s = where.first_within_s
        if importlib.util.find_spec("jtop") is None:
            raise SourceError("jetson-stats is not installed")
        child = Path(__file__).with_name("jtop_child.py")
        path = os.pathsep.join(filter(None, sys.path))  # it finds what we would have found
        self._lines = LineProcess([sys.executable, str(child)], {**os.environ, "PYTHONPATH": path})

    def read(self) -> Reading:
        at, line = self._lines.newest(self._first_within_s, SILENT_S)
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise SourceError("its answer cannot be read")
        if "error" in answer:
            raise SourceError(" ".join(str(answer["error"]).split()))
        rails, board = rails_of(answer.get("power"))
        return self.board_reading(rails, at, board)

    def close(self) -> None:
        self._lines.close()


def rails_of(power: object) -> tuple[dict[str, float], str | None]:
    """Rail name to mW, of ``jtop.power``, and the board's input rail where it is named.

    jetson-stats moves a board's input rail out of ``rail`` into ``tot``, with its name; where there
    is none, ``tot`` is the sum of what it listed, and we leave the sum to the reading. SourceError
    where something is missing or cannot be true.
    """
    if not isinstance(power, dict) or not power:
        raise SourceError("jetson-stats finds no power sensor")
    total = power.get("tot")
    if not isinstance(total, dict):
        raise SourceError("jetson-stats tells no total")
    listed = power.get("rail")
    listed = listed if isinstance(listed, dict) else {}
    powers = {str(name): _milliwatts(name, rail) for name, rail in listed.items()}
    rails = {
        name: milliwatts
        for name, milliwatts in powers.items()
        if name.upper() != UNCONNECTED
        and not name.lower().startswith(_USB_SUPPLY)
        and listed[name].get("online", True) is not False
    }
    told = _milliwatts("total", total)
    name = total.get("name")
    if isinstance(name, str) and name:
        if rails and max(rails.values()) > told * (1 + _DISAGREES):
            raise SourceError(f"jetson-stats tells a rail above the whole board's {told:g} mW")
        return {name: told, **rails}, name
    if not any(each in rails for each in BOARD_INPUTS):
        summed = sum(powers.values())
        if abs(told - summed) > _DISAGREES * summed:
            raise SourceError(f"jetson-stats tells a total of {told:g} mW, its rails {summed:g}")
    return rails, None


def _milliwatts(name: object, rail: object) -> float:
    """``power`` of a rail, which its volts and amperes (mV, mA) must agree with where told."""
    values: Mapping[Any, Any] = rail if isinstance(rail, dict) else {}
    power, volts, amperes = (_number(values.get(key)) for key in ("power", "volt", "curr"))
    if power is None:
        raise SourceError(f"jetson-stats tells no power of {name}")
    if volts is not None and amperes is not None:
        product = volts * amperes / 1000
        if abs(power - product) > max(1.0, _DISAGREES * abs(product)):
            raise SourceError(
                f"jetson-stats tells {power:g} mW of {name}, its volts and amperes {product:g}"
            )
    return power


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and integer(str(value)) is None:
        return None
    return float(value) if math.isfinite(value) else None
