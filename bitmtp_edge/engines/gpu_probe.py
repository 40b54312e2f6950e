"""Whether a library has code for the GPU of this machine."""

from __future__ import annotations

from ..errors import UserError
from ..host import read_host
from .base import ReplayState, StagedWindow
from .gpu_device import GpuDevice
from .gpu_library import NO_KERNEL_IMAGE, LaunchError, StepLibrary
from .gpu_step import StepInputBlock

LEAST_CAPABILITY = (8, 0)
_GROUPS = (
    ", as it does to users outside of the groups video and render: sudo usermod -aG video,render "
    "$USER, then log in again; in a container: --runtime nvidia"
)


def no_device() -> UserError:
    """The error for a machine without a GPU that this process may use."""
    hint = _GROUPS if read_host().jetson else ""
    return UserError(f"no CUDA device: the NVIDIA driver is missing, or shows none{hint}")


def launch_one(library: StepLibrary, kind: str, device: GpuDevice, build: str) -> None:
    """The smallest launch there is. kind: what messages call the library. build: the command that
    builds it. Raises UserError where the GPU is too old, or the library not for it."""
    major, minor = device.capability
    if device.capability < LEAST_CAPABILITY:
        raise UserError(
            f"{device.name} has compute capability {major}.{minor}: expected 8.0 (Ampere) or newer"
        )
    inputs = StepInputBlock(device, library, 1)
    try:
        inputs.stage(ReplayState(1, 1, 1, "verify"), StagedWindow([0], 0, None, 0, 1), None)
    except LaunchError as error:
        if error.code != NO_KERNEL_IMAGE:
            raise
        raise UserError(
            f"the {kind} library has no code for {device.name} (compute capability "
            f"{major}.{minor}): {build} -C "
            f"cmake.define.CMAKE_CUDA_ARCHITECTURES={major}{minor}-real"
        ) from None
    device.synchronize()
