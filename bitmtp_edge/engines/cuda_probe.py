"""Whether the ``cuda`` engine works on this machine."""

from __future__ import annotations

from ..errors import UserError
from .cuda_device import CudaDevice
from .cuda_library import BUILD, CudaLibrary, driver_devices
from .gpu_probe import launch_one, no_device


def unavailable() -> str | None:
    """Why not, in one line that says what to do; None where it works.

    Nothing of PyTorch is loaded on a machine without a GPU.
    """
    if driver_devices() == 0:
        return str(no_device())
    try:
        library = CudaLibrary()
        launch_one(library, "CUDA", CudaDevice(), BUILD)
    except UserError as error:
        return str(error)
    return None
