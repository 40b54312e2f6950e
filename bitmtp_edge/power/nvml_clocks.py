"""Clocks and temperature of one NVIDIA GPU, by its driver."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from .clocks import Clocks
from .nvml import first_visible
from .nvml_library import NvmlDevice
from .source import SourceError

T = TypeVar("T")


class NvmlClocks:
    """What a GPU tells; what it does not is None. SourceError where it cannot be had at all."""

    def __init__(self, gpu: str | None, device: NvmlDevice | None = None) -> None:
        self._device = device or NvmlDevice(
            gpu or first_visible(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        )

    def read(self) -> Clocks:
        """Those of now; ``emc_mhz`` is the GPU's memory."""
        device = self._device
        celsius, held = _told(device.celsius), _told(device.throttled_by)
        return Clocks(
            gpu_mhz=_told(device.megahertz),
            gpu_min_mhz=None,
            gpu_max_mhz=None,
            emc_mhz=_told(lambda: device.megahertz(memory=True)),
            jetson_clocks=None,
            events={},
            throttled_by=held or [],
            celsius={} if celsius is None else {"GPU": celsius},
            tells_throttling=held is not None,
        )

    def close(self) -> None:
        self._device.close()


def _told(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except SourceError:
        return None
