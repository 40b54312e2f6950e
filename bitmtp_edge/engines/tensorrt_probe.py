"""Whether the ``tensorrt`` engine works on this machine."""

from __future__ import annotations

from ..errors import UserError
from .cuda_library import driver_devices
from .gpu_probe import NO_DEVICE, launch_one
from .pycuda_device import PycudaDevice
from .tensorrt_api import import_tensorrt, register_plugins
from .tensorrt_library import BUILD, PluginLibrary


def unavailable() -> str | None:
    """Why not, in one line that says what to do; None where it works.

    Nothing of TensorRT is loaded on a machine without a GPU or without our plugins.
    """
    if driver_devices() == 0:
        return NO_DEVICE
    try:
        library = PluginLibrary()
        import_tensorrt()
        device = PycudaDevice()
        try:
            with device.current():
                launch_one(library, "TensorRT plugin", device, BUILD)
                register_plugins(library)
        finally:
            device.close()
    except UserError as error:
        return str(error)
    return None
