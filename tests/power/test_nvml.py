"""NVML, on a library of Python functions: the counter, power now, and GPUs that tell neither."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.power import nvml_library
from bitmtp_edge.power.clocks import Clocks
from bitmtp_edge.power.nvml import Nvml, first_visible
from bitmtp_edge.power.nvml_clocks import NvmlClocks
from bitmtp_edge.power.nvml_library import FieldValue
from bitmtp_edge.power.source import SourceError, Where

NOT_SUPPORTED = 3


class Library:
    """The functions of libnvidia-ml, as ctypes would call them."""

    def __init__(self) -> None:
        self.millijoules: int | None = 1234567
        self.instant: int | None = 78500
        self.mean: int | None = 80000
        self.degrees: int | None = 41
        self.reasons: int | None = 0x4 | 0x1 | 0x40
        self.asked: list[object] = []
        self.opened = 0
        self.nvmlErrorString: Any = ErrorString()

    def nvmlInit_v2(self) -> int:
        self.opened += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.opened -= 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        self.asked.append(index.value)
        return 0 if index.value < 2 else 6

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, device: Any) -> int:
        self.asked.append(uuid.value)
        return 0

    def nvmlDeviceGetName(self, device: Any, name: Any, size: Any) -> int:
        name.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Any, out: Any) -> int:
        return given(out, self.millijoules)

    def nvmlDeviceGetPowerUsage(self, device: Any, out: Any) -> int:
        return given(out, self.mean)

    def nvmlDeviceGetFieldValues(self, device: Any, count: Any, out: Any) -> int:
        field = out._obj
        assert (count.value, field.field) == (1, 186)
        field.status = 0 if self.instant is not None else NOT_SUPPORTED
        field.kind = 1
        field.value.unsigned_int = self.instant or 0
        return 0

    def nvmlDeviceGetClockInfo(self, device: Any, kind: Any, out: Any) -> int:
        return given(out, {1: 1980, 2: 3201}[kind.value])

    def nvmlDeviceGetTemperature(self, device: Any, sensor: Any, out: Any) -> int:
        return given(out, self.degrees)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: Any, out: Any) -> int:
        return given(out, self.reasons)


class ErrorString:
    def __call__(self, code: Any) -> bytes | None:
        return {NOT_SUPPORTED: b"Not Supported", 6: b"Not Found"}.get(code.value)


def given(out: Any, value: int | None) -> int:
    if value is None:
        return NOT_SUPPORTED
    out._obj.value = value
    return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr(nvml_library, "_load", lambda: library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return library


def test_a_gpu_with_a_counter(library: Library) -> None:
    with Nvml(Where()) as source:
        reading = source.read()
        assert source.counter() == 1234.567
    assert reading.joules is None  # too dear for every reading
    assert reading.rails == {"GPU 0 (NVIDIA H200)": 78500}
    assert (reading.total_mw, reading.total_is) == (78500, "GPU 0 (NVIDIA H200)")
    assert not source.counter_only
    assert library.opened == 0


def test_a_gpu_that_tells_only_the_mean_of_a_second(library: Library) -> None:
    library.instant = library.millijoules = None
    with Nvml(Where()) as source:
        reading = source.read()
        assert source.counter() is None
    assert reading.total_mw == 80000


def test_a_gpu_that_tells_no_power(library: Library) -> None:
    library.instant = library.mean = None
    with pytest.raises(SourceError) as refused:
        Nvml(Where())
    assert str(refused.value) == "GPU 0 (NVIDIA H200) tells no power: Not Supported"
    assert library.opened == 0


def test_a_value_is_as_old_as_its_first_sight(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [50.0]
    monkeypatch.setattr("bitmtp_edge.power.nvml.time.monotonic", lambda: now[0])
    stamps = []
    with Nvml(Where()) as source:
        values = ((50.0, 70000), (50.05, 70000), (50.1, 90000), (50.15, 90000), (50.3, 90000))
        for now[0], library.instant in values:
            stamps.append(source.read().at)
    assert stamps == [50.0, 50.0, 50.1, 50.1, 50.3]


def test_no_power_is_no_reading(library: Library) -> None:
    library.instant = 0
    with Nvml(Where()) as source, pytest.raises(SourceError, match="reads 0 mW"):
        source.read()


@pytest.mark.parametrize(
    ("visible", "gpu"),
    [("", "0"), ("1,0", "1"), ("GPU-8a,GPU-9b", "GPU-8a"), ("-1", "0"), ("MIG-7c", "MIG-7c")],
)
def test_the_first_visible_gpu(visible: str, gpu: str) -> None:
    assert first_visible(visible) == gpu


@pytest.mark.parametrize(("gpu", "asked"), [("1", 1), ("GPU-8a", b"GPU-8a")])
def test_the_gpu_asked_for(gpu: str, asked: object, library: Library) -> None:
    Nvml(Where(gpu=gpu)).close()
    assert library.asked == [asked]


def test_no_such_gpu(library: Library) -> None:
    with pytest.raises(SourceError, match="GPU 7: Not Found"):
        Nvml(Where(gpu="7"))
    assert library.opened == 0


def test_a_driver_that_lacks_a_function(library: Library) -> None:
    with Nvml(Where()) as source:
        source.device._nvml = Without(library, "nvmlDeviceGetFieldValues")
        assert source.read().total_mw == 80000


class Without:
    """A library without one of its functions."""

    def __init__(self, library: Library, name: str) -> None:
        self._library, self._name = library, name

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name == self._name:
            raise AttributeError(name)
        found: Callable[..., int] = getattr(self._library, name)
        return found


def test_the_field_is_laid_out_as_the_driver_has_it() -> None:
    assert ctypes.sizeof(FieldValue) == 40
    assert FieldValue.value.offset == 32


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_library, "_LIBRARIES", ("libnone-such.so",))
    with pytest.raises(SourceError, match="no NVIDIA driver library"):
        Nvml(Where())


def test_it_is_of_this_machine(tmp_path: Path, library: Library) -> None:
    with pytest.raises(SourceError, match="it reads this machine, not"):
        Nvml(Where(tmp_path))


def test_clocks_temperature_and_what_throttles(library: Library) -> None:
    clocks = NvmlClocks("1")
    assert clocks.read() == Clocks(
        gpu_mhz=1980,
        gpu_min_mhz=None,
        gpu_max_mhz=None,
        emc_mhz=3201,
        jetson_clocks=None,
        events={},
        throttled_by=["power cap", "thermal slowdown (hardware)"],  # to be idle is no throttling
        celsius={"GPU": 41},
        tells_throttling=True,
    )
    assert library.asked == [1]
    library.degrees = library.reasons = None
    assert (clocks.read().celsius, clocks.read().throttled_by) == ({}, [])
    assert not clocks.read().tells_throttling
    clocks.close()
    assert library.opened == 0
