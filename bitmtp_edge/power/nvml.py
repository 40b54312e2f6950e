"""Power and the energy counter of one NVIDIA GPU: the GPU's board alone, not the machine."""

from __future__ import annotations

import os
import time

from .nvml_library import NvmlDevice
from .source import Reading, Source, SourceError, Where

POLL_S = 0.05
COUNTER_UPDATE_S = 0.1  # as seen on an H200


class Nvml(Source):
    """One rail, the GPU. Joules are from the driver's counter, where the GPU has one."""

    name = "nvml"

    def __init__(self, where: Where, device: NvmlDevice | None = None) -> None:
        where.must_be_live()
        gpu = where.gpu or first_visible(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        self.device = device or NvmlDevice(gpu)
        self.poll_s, self.update_s = POLL_S, COUNTER_UPDATE_S
        self._rail = f"GPU {gpu} ({self.device.name})"
        self._counts = True
        try:
            try:
                self.device.joules()
            except SourceError:
                self._counts = False
            self.device.milliwatts()
        except SourceError as error:
            self.close()
            raise SourceError(f"{self._rail} tells no power: {error}") from None

    def read(self) -> Reading:
        joules = self.device.joules() if self._counts else None
        rails = {self._rail: self.device.milliwatts()}
        at = time.monotonic()
        if rails[self._rail] <= 0:
            raise SourceError(f"{self._rail} reads 0 mW, which cannot be")
        return Reading(at, rails, rails[self._rail], self._rail, self.name, joules)

    def close(self) -> None:
        self.device.close()


def first_visible(devices: str) -> str:
    """Index or UUID of the first GPU of CUDA_VISIBLE_DEVICES; 0 where that says nothing.

    An index counts as NVML does where GPUs are of one kind, or CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    first = devices.split(",")[0].strip()
    return first if first.isdecimal() or first.startswith(("GPU-", "MIG-")) else "0"
