"""A replay state's engine in TensorRT: deserialised, bound, enqueued once, captured, replayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from ..operators import Spec
from .arena import ALIGNMENT
from .base import ReplayState
from .gpu_device import Block
from .gpu_engine import StepPlan
from .gpu_step import StepOutputBlock
from .step_layout import StepInputs
from .tensorrt_api import error_log, import_tensorrt
from .tensorrt_library import PluginLibrary
from .tensorrt_tensors import EngineTensors, spec_of


def deserialised(runtime: Any, plan: bytes, expected: EngineTensors, where: str) -> Any:
    """The ICudaEngine of ``plan``, by an IRuntime.

    Raises UserError where TensorRT does not take it, or its tensors are not the ``expected`` ones.
    ``where``: what messages name, and the command that mends it.
    """
    log = error_log()
    log.take()
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise UserError(f"TensorRT does not take the engine ({log.told()}): {where}")
    trt: Any = import_tensorrt()
    inputs: dict[str, Spec] = {}
    outputs: dict[str, Spec] = {}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        spec = spec_of(trt, engine.get_tensor_dtype(name), engine.get_tensor_shape(name))
        mode = engine.get_tensor_mode(name)
        (inputs if mode == trt.TensorIOMode.INPUT else outputs)[name] = spec
    if differences := expected.differences(inputs, outputs):
        raise UserError(f"the engine has other tensors: {differences[0]}: {where}")
    return engine


class TensorRTPlan(StepPlan):
    """engine: an ICudaEngine. addresses: of every input and output, by name. scratch: memory for
    what lies between, which no other step uses at the same time. where: what messages name, and the
    command that mends it."""

    def __init__(
        self,
        state: ReplayState,
        inputs: StepInputs,
        outputs: StepOutputBlock,
        *,
        engine: Any,
        addresses: Mapping[str, int],
        scratch: Block,
        library: PluginLibrary,
        stream: int,
        where: str,
    ) -> None:
        super().__init__(state, inputs, outputs, library, stream)
        self._where = where
        need = engine.device_memory_size_v2
        if need > scratch.size:
            raise UserError(
                f"the engine wants {need} bytes of scratch memory, the manifest says "
                f"{scratch.size} at most: {where}"
            )
        trt: Any = import_tensorrt()
        log = error_log()
        log.take()
        # A context keeps its engine, and that the runtime.
        self._context: Any = engine.create_execution_context(
            trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        if self._context is None:
            raise UserError(f"TensorRT makes no execution context ({log.told()}): {where}")
        self._context.set_device_memory(scratch.address, scratch.size)
        for name, address in addresses.items():
            assert address % ALIGNMENT == 0, f"{name} lies at {address:#x}"
            if not self._context.set_tensor_address(name, address):
                raise UserError(f"TensorRT takes no address for {name!r} ({log.told()}): {where}")

    def release(self) -> None:
        super().release()
        self._context = None

    def launch(self) -> None:
        log = error_log()
        log.take()
        if not self._context.execute_async_v3(self._stream):
            raise UserError(f"TensorRT does not run the engine ({log.told()}): {self._where}")
