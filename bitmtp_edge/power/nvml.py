"""Power and the energy counter of one NVIDIA GPU: the GPU's board alone, not the machine."""

from __future__ import annotations

import os
import time

from .nvml_library import NvmlDevice
from .source import Reading, Source, SourceError, Where

POLL_S = 0.025
UPDATE_S = 0.1  # of power and of the counter, as seen on an H200


class Nvml(Source):
    """One rail, the GPU. Where the GPU has an energy counter, :meth:`counter` reads it: on an H200
    the driver is busy for 6 ms over that, and with power for 0.04 ms."""

    name = "nvml"

    def __init__(self, where: Where, device: NvmlDevice | None = None) -> None:
        where.must_be_live()
        gpu = where.gpu or first_visible(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        self.device = device or NvmlDevice(gpu)
        self.poll_s, self.update_s = POLL_S, UPDATE_S
        self._rail = f"GPU {gpu} ({self.device.name})"
        self._newest: Reading | None = None
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
        """The driver shows a value until it has the next, so its moment is when it is first seen.
        One that stays longer than that is a new one like the old."""
        milliwatts = self.device.milliwatts()
        at = time.monotonic()
        if milliwatts <= 0:
            raise SourceError(f"{self._rail} reads 0 mW, which cannot be")
        old = self._newest
        if old is None or milliwatts != old.total_mw or at - old.at > 1.5 * UPDATE_S:
            rails = {self._rail: milliwatts}
            self._newest = Reading(at, rails, milliwatts, self._rail, self.name)
        assert self._newest is not None
        return self._newest

    def counter(self) -> float | None:
        return self.device.joules() if self._counts else None

    def close(self) -> None:
        self.device.close()


def first_visible(devices: str) -> str:
    """Index or UUID of the first GPU of CUDA_VISIBLE_DEVICES; 0 where that says nothing.

    An index counts as NVML does where GPUs are of one kind, or CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    first = devices.split(",")[0].strip()
    return first if first.isdecimal() or first.startswith(("GPU-", "MIG-")) else "0"
