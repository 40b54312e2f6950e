"""Whether the ``cuda`` engine works on this machine."""

from __future__ import annotations

from ..errors import UserError
from .base import ReplayState
from .cuda_device import CudaDevice
from .cuda_library import BUILD, CudaLibrary, driver_devices
from .gpu_library import NO_KERNEL_IMAGE, LaunchError
from .gpu_step import StepInputBlock

LEAST_CAPABILITY = (8, 0)


def unavailable() -> str | None:
    """Why not, in one line that says what to do; None where it works.

    Nothing of PyTorch is loaded on a machine without a GPU.
    """
    if driver_devices() == 0:
        return "no CUDA device: the NVIDIA driver is missing, or shows none"
    try:
        library = CudaLibrary()
        device = CudaDevice()
        _launch_one(library, device)
    except UserError as error:
        return str(error)
    return None


def _launch_one(library: CudaLibrary, device: CudaDevice) -> None:
    """The smallest launch there is, which shows whether the library has code for this GPU."""
    major, minor = device.capability
    if device.capability < LEAST_CAPABILITY:
        raise UserError(
            f"{device.name} has compute capability {major}.{minor}: expected 8.0 (Ampere) or newer"
        )
    inputs = StepInputBlock(device, 1)
    _, token_ids = inputs.tensors["mask"]  # of one slot: int32[1, 1], as a step's token ids are
    try:
        inputs.stage(library, ReplayState(1, 1, 1, "verify"), [0], 0, token_ids, 0, 1)
    except LaunchError as error:
        if error.code != NO_KERNEL_IMAGE:
            raise
        raise UserError(
            f"the CUDA library has no code for {device.name} (compute capability {major}.{minor}): "
            f"{BUILD} -C cmake.define.CMAKE_CUDA_ARCHITECTURES={major}{minor}-real"
        ) from None
    device.synchronize()
