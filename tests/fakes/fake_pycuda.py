"""A stand-in for pycuda.driver: as much of it as is used, over :class:`FakeGpu`."""

from __future__ import annotations

from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .gpu import FakeGpu, Stream

NON_BLOCKING = 1
INTEGRATED = "INTEGRATED"
DISABLE_TIMING = 2
DEVICEMAP = 2


class Error(Exception):
    pass


class OutOfMemory(Error):
    pass


class FakeDriver:
    """capability: of the device. integrated: whether it shares the processor's memory. failing:
    what the next wait raises."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.capability = (8, 7)
        self.integrated = False
        self.devices = 1
        self.failing: str | None = None
        self._initialised = False

    def module(self) -> ModuleType:
        """pycuda.driver."""
        module = ModuleType("pycuda.driver")
        for name, value in {
            "init": self._init,
            "Device": self._device,
            "Stream": self._stream,
            "Event": self._event,
            "Error": Error,
            "MemoryError": OutOfMemory,
            "device_attribute": SimpleNamespace(INTEGRATED=INTEGRATED),
            "event_flags": SimpleNamespace(DISABLE_TIMING=DISABLE_TIMING),
            "host_alloc_flags": SimpleNamespace(DEVICEMAP=DEVICEMAP),
            "mem_alloc": self._mem_alloc,
            "mem_get_info": self._mem_get_info,
            "pagelocked_zeros": self._pagelocked_zeros,
            "memcpy_htod_async": self._htod,
            "memcpy_dtod_async": self._dtod,
            "memset_d8_async": self._memset,
        }.items():
            setattr(module, name, value)
        return module

    def _init(self) -> None:
        if self.devices == 0:
            raise Error("cuInit failed: no CUDA-capable device is detected")
        self._initialised = True

    def _device(self, index: int) -> _Device:
        assert self._initialised, "init() comes first"
        if index >= self.devices:
            raise Error("cuDeviceGet failed: invalid device ordinal")
        return _Device(self)

    def _stream(self, flags: int) -> _Stream:
        assert flags == NON_BLOCKING
        return _Stream(self, self.gpu.new_stream())

    def _event(self, flags: int) -> _Event:
        assert flags == DISABLE_TIMING
        return _Event(self)

    def wait(self, stream: Stream, end: int) -> None:
        self.gpu.require_current()
        if self.failing is not None:
            told, self.failing = self.failing, None
            self.gpu.faulted = True
            raise Error(told)
        stream.run_to(end)

    # ---- memory -------------------------------------------------------------------------------

    def _mem_alloc(self, size: int) -> _Allocation:
        if not 0 < size < 1 << 64:
            raise OverflowError("int too big to convert")  # the bindings', before CUDA is asked
        address = self.gpu.allocate(size)
        if not address:
            raise OutOfMemory("cuMemAlloc failed: out of memory")
        return _Allocation(self.gpu, address)

    def _mem_get_info(self) -> tuple[int, int]:
        self.gpu.require_current()
        return self.gpu.total - self.gpu.held, self.gpu.total

    def _pagelocked_zeros(self, shape: int, dtype: Any, mem_flags: int) -> NDArray[Any]:
        self.gpu.require_current()
        assert shape > 0 and mem_flags == DEVICEMAP
        return np.zeros(shape, dtype)

    def _htod(self, dest: int, src: NDArray[np.uint8], stream: _Stream) -> None:
        self._copy(self.gpu.bytes_at(dest, src.nbytes), src, stream)

    def _dtod(self, dest: int, src: int, size: int, stream: _Stream) -> None:
        self._copy(self.gpu.bytes_at(dest, size), self.gpu.bytes_at(src, size), stream)

    def _memset(self, dest: int, data: int, size: int, stream: _Stream) -> None:
        self._copy(self.gpu.bytes_at(dest, size), np.full(size, data, np.uint8), stream)

    def _copy(self, to: NDArray[np.uint8], source: NDArray[np.uint8], stream: _Stream) -> None:
        self.gpu.require_current()
        stream.stream.enqueue(partial(np.copyto, to, source))


class _Device:
    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver

    def name(self) -> str:
        return "Fake Orin"

    def compute_capability(self) -> tuple[int, int]:
        return self._driver.capability

    def get_attribute(self, attribute: str) -> int:
        assert attribute == INTEGRATED
        return int(self._driver.integrated)

    def retain_primary_context(self) -> _Context:
        self._driver.gpu.retained += 1
        return _Context(self._driver.gpu)


class _Context:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def push(self) -> None:
        assert self._gpu.retained > 0
        self._gpu.pushed += 1

    def pop(self) -> None:
        self._gpu.require_current()
        self._gpu.pushed -= 1

    def detach(self) -> None:
        assert self._gpu.pushed == 0
        self._gpu.retained -= 1


class _Stream:
    def __init__(self, driver: FakeDriver, stream: Stream) -> None:
        self._driver = driver
        self.stream = stream

    @property
    def handle(self) -> int:
        return self.stream.handle

    def synchronize(self) -> None:
        self._driver.wait(self.stream, self.stream.end)


class _Event:
    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver
        self._reached: tuple[Stream, int] | None = None

    def record(self, stream: _Stream) -> None:
        self._driver.gpu.require_current()
        self._reached = stream.stream, stream.stream.end

    def synchronize(self) -> None:
        assert self._reached is not None
        self._driver.wait(*self._reached)


class _Allocation:
    """Freed as soon as nobody has it, but not by a destructor: the next garbage collection may come
    with no context current, where pycuda says nothing and leaks."""

    def __init__(self, gpu: FakeGpu, address: int) -> None:
        self._gpu = gpu
        self._address: int | None = address

    def __int__(self) -> int:
        assert self._address is not None
        return self._address

    def free(self) -> None:
        assert self._address is not None, "freed twice"
        self._gpu.free(self._address)
        self._address = None

    def __del__(self) -> None:
        if self._address is not None and self._gpu.pushed > 0:
            self.free()
