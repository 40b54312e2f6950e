"""Whether the ``tensorrt`` engine works on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import UserError
from .cuda_library import driver_devices
from .gpu_probe import launch_one, no_device
from .pycuda_device import PycudaDevice
from .tensorrt_api import import_tensorrt, register_plugins
from .tensorrt_library import BUILD, PluginLibrary


@contextmanager
def ready_device() -> Iterator[tuple[PycudaDevice, PluginLibrary]]:
    """A device whose context is current inside the block, and our plugins, which TensorRT knows.

    Raises UserError where one of them is missing or does not fit. Nothing of TensorRT is loaded on
    a machine without a GPU or without our plugins.
    """
    if driver_devices() == 0:
        raise no_device()
    library = PluginLibrary()
    import_tensorrt()
    device = PycudaDevice()
    try:
        with device.current():
            launch_one(library, "TensorRT plugin", device, BUILD)
            register_plugins(library)
            yield device, library
    finally:
        device.close()


def unavailable() -> str | None:
    """Why not, in one line that says what to do; None where it works."""
    try:
        with ready_device():
            return None
    except UserError as error:
        return str(error)
