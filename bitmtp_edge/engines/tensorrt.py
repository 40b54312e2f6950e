"""Engine ``tensorrt``: an engine of TensorRT for each replay state, captured in a CUDA graph.

The plans hold no weights (:mod:`bitmtp_edge.building`): all are bound to the one copy in the
device's memory, to the KV buffer in use, whose workspace takes the new rows, and to one block of
scratch memory.
"""

from __future__ import annotations

from functools import partial

from ..bundle import Bundle
from .base import ReplayState
from .gpu_engine import GpuEngine
from .gpu_step import TURNS, StepOutputBlock
from .pycuda_device import PycudaDevice
from .step_layout import SharedBlock, StepInputs, in_a_row
from .tensorrt_api import register_plugins, started
from .tensorrt_library import PluginLibrary
from .tensorrt_manifest import (
    built_for,
    checked_manifest,
    plan_path,
    read_plan,
    rebuild_command,
    state_name,
)
from .tensorrt_plans import TensorRTPlan, deserialised
from .tensorrt_tensors import engine_tensors


class TensorRTEngine(GpuEngine):
    """One sequence on a CUDA device, in its primary context.

    device: one that is open already, and stays so; None opens the first and closes it again.

    Raises UserError where TensorRT, pycuda, a GPU, our plugins or memory are missing, and NotBuilt
    where the bundle has no engines that fit this machine.
    """

    name = "tensorrt"
    _device: PycudaDevice
    _library: PluginLibrary

    def __init__(self, bundle: Bundle, *, device: PycudaDevice | None = None) -> None:
        library = PluginLibrary()
        self._own_device = device is None
        device = PycudaDevice() if device is None else device
        self._closed = True  # until it is open
        try:
            with device.current():
                register_plugins(library)
                self._manifest = checked_manifest(bundle, built_for(bundle, device, library))
                super().__init__(bundle, device, library, None)
                self._runtime = started("Runtime")
                most = max(entry.scratch for entry in self._manifest.engines.values())
                self._scratch = device.allocate(most, "what steps keep between operators")
                self._outputs = SharedBlock(
                    partial(device.allocate, purpose="the outputs of a step")
                )
                self._host_outputs = [SharedBlock(device.pinned) for _ in range(TURNS)]
        except BaseException:
            if self._own_device:
                device.close()
            raise

    def memory(self) -> dict[str, int]:
        with self._turn, self._current:
            return {
                "weights": self._weights.block.size,
                "kv": self._kv.block.size,
                "arena": self._scratch.size,  # the workspace is part of it
                "workspace": 0,
                "device": self._device.used(),
            }

    def close(self) -> None:
        if self._closed:
            return
        try:
            super().close()
        finally:
            if self._own_device:
                self._device.close()

    def _new_plan(self, state: ReplayState) -> TensorRTPlan:
        plan = read_plan(self.bundle, self._manifest, state)
        path = plan_path(self.bundle, state_name(state))
        where = f"{path}: build it again with  {rebuild_command(self.bundle, state)}"
        tensors = engine_tensors(self.bundle, state)
        engine = deserialised(self._runtime, plan, tensors, where)
        offsets, size = in_a_row(tensors.outputs)
        outputs = StepOutputBlock(
            self._library,
            self._device.stream,
            self._outputs.of(size).first(size),
            [host.of(size).first(size) for host in self._host_outputs],
            tensors.outputs,
            offsets,
        )
        arrays = {
            **self._weights.tensors,
            **self._kv.history,
            **{name: array for name, (_, array) in self._inputs.tensors.items()},
            **outputs.tensors,
            **self._kv.workspace,
        }
        names = (*tensors.inputs, *tensors.outputs, *tensors.rows)
        return TensorRTPlan(
            state,
            StepInputs(state, self._inputs.host),
            outputs,
            engine=engine,
            addresses={name: arrays[name].address for name in names},
            scratch=self._scratch,
            library=self._library,
            stream=self._device.stream,
            where=where,
        )

    def _release(self) -> None:
        super()._release()
        del self._runtime, self._scratch, self._outputs, self._host_outputs
