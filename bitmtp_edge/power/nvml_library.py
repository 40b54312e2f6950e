"""The NVIDIA driver's management library, through ctypes: the few calls that measuring needs."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_char_p, c_int, c_longlong, c_uint, c_ulonglong, c_void_p
from typing import Any

from .source import SourceError

_LIBRARIES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
_NAME_BYTES = 96
_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT
_CLOCK_SM, _CLOCK_MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_THROTTLING = {  # of nvmlClocksThrottleReasons those that are a limit, not a wish
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal slowdown (driver)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}
_UNSIGNED_INT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT


class _Union(ctypes.Union):
    _fields_ = (("unsigned_int", c_uint), ("whole", c_ulonglong))


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = (
        ("field", c_uint),
        ("scope", c_uint),
        ("timestamp", c_longlong),
        ("latency", c_longlong),
        ("kind", c_int),
        ("status", c_int),
        ("value", _Union),
    )


class NvmlDevice:
    """One GPU. ``gpu``: its index among NVML's, or its UUID. SourceError where it cannot be had."""

    def __init__(self, gpu: str, library: Any = None) -> None:
        self._nvml: Any = _load() if library is None else library
        self._call("nvmlInit_v2")
        self._open = True
        self._device = c_void_p()
        try:
            if gpu.isdecimal():
                self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(int(gpu)), byref(self._device))
            else:
                self._call("nvmlDeviceGetHandleByUUID", c_char_p(gpu.encode()), byref(self._device))
            name = (c_char * _NAME_BYTES)()
            self._call("nvmlDeviceGetName", self._device, name, c_uint(_NAME_BYTES))
        except SourceError as error:
            self.close()
            raise SourceError(f"GPU {gpu}: {error}") from None
        self.name = name.value.decode(errors="replace")

    def close(self) -> None:
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()

    def joules(self) -> float:
        """The energy counter, since the driver was loaded."""
        millijoules = c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._device, byref(millijoules))
        return millijoules.value / 1000

    def milliwatts(self) -> float:
        """Power now. GPUs that do not tell that tell the mean of their last second."""
        field = FieldValue(field=_POWER_INSTANT)
        try:
            self._call("nvmlDeviceGetFieldValues", self._device, c_int(1), byref(field))
        except SourceError:
            field.status = -1
        if field.status == 0 and field.kind == _UNSIGNED_INT:
            return float(field.value.unsigned_int)
        power = c_uint()
        self._call("nvmlDeviceGetPowerUsage", self._device, byref(power))
        return float(power.value)

    def megahertz(self, memory: bool = False) -> float:
        """The clock of the multiprocessors, or of the memory."""
        clock = c_uint()
        kind = c_int(_CLOCK_MEMORY if memory else _CLOCK_SM)
        self._call("nvmlDeviceGetClockInfo", self._device, kind, byref(clock))
        return float(clock.value)

    def celsius(self) -> float:
        """Of the GPU."""
        degrees = c_uint()
        self._call("nvmlDeviceGetTemperature", self._device, c_int(0), byref(degrees))
        return float(degrees.value)

    def throttled_by(self) -> list[str]:
        """What holds the clocks down now."""
        bits = c_ulonglong()
        self._call("nvmlDeviceGetCurrentClocksThrottleReasons", self._device, byref(bits))
        return [reason for bit, reason in _THROTTLING.items() if bits.value & bit]

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            call = getattr(self._nvml, function)
        except AttributeError:
            raise SourceError(f"the driver has no {function}") from None
        if code := call(*arguments):
            raise SourceError(self._meaning(code))

    def _meaning(self, code: int) -> str:
        told = self._nvml.nvmlErrorString
        told.restype = c_char_p
        text = told(c_int(code))
        return text.decode(errors="replace") if text else f"NVML error {code}"


def _load() -> Any:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise SourceError("no NVIDIA driver library (libnvidia-ml.so.1)")
