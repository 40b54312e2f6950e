"""Who tells clocks and temperatures while an engine works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..engines.base import Engine
from ..power.clocks import Clocked, ClockReader
from ..power.nvml_clocks import NvmlClocks
from ..power.source import SourceError


@contextmanager
def open_clocks(engine: Engine, root: Path) -> Iterator[Clocked]:
    """The kernel's files below ``root``; where they know no GPU and the engine runs on one, its
    driver, if that answers."""
    reader = ClockReader(root)
    driver = None
    if engine.device is not None and reader.read().gpu_mhz is None:
        with suppress(SourceError):
            driver = NvmlClocks(engine.gpu)
    if driver is None:
        yield reader
        return
    try:
        yield driver
    finally:
        driver.close()
