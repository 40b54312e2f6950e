"""A stand-in for the package tensorrt: parses, builds, deserialises, runs.

It is strict: what the package of that release does not have raises AttributeError, networks are
checked as TensorRT and our creators would, and every address, size and order of calls is. A step
runs each node as its machine does (:class:`.gpu.FakeGpu`: by the CPU's kernels; :class:`.real_gpu.
RealGpu`), so that tokens can be compared.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import onnx

from bitmtp_edge.engines.arena import place
from bitmtp_edge.engines.step_layout import lifetimes, spec_bytes
from bitmtp_edge.operators import OPERATORS, Spec

from .gpu import FakeGpu
from .network_step import NetworkStep
from .real_gpu import PluginGpu, RealGpu
from .strict import Strict

Machine = FakeGpu | RealGpu | PluginGpu

MAGIC = b"fake plan\n"


class DataType(enum.IntEnum):
    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3


class TensorFormat(enum.IntEnum):
    LINEAR = 0
    CHW2 = 1


class TensorIOMode(enum.IntEnum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class Severity(enum.IntEnum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2


class MemoryPoolType(enum.IntEnum):
    WORKSPACE = 0


class Strategy(enum.IntEnum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


class _OldNetworkFlag(enum.IntEnum):
    EXPLICIT_BATCH = 0
    STRONGLY_TYPED = 1


class _NewNetworkFlag(enum.IntEnum):
    STRONGLY_TYPED = 0


_DTYPES = {"int32": DataType.INT32, "float16": DataType.HALF, "float32": DataType.FLOAT}


@dataclass
class Built:
    """What a build was made with."""

    workspace: int
    strongly_typed: bool
    aux_streams: int
    inputs: dict[str, Spec]
    outputs: dict[str, Spec]
    network_bytes: int


@dataclass
class FakeTensorRT:
    """gpu: where it runs. version: "10.3.0.30" or "11.1.0.106". library: the plugins that it can
    load. operators: the creators in it. built: what was, in order. deserialised, contexts,
    executed: how often. refusal: what the next "start", "parse", "build", "deserialise", "context",
    "address" or "execute" says as it fails. loaded: the libraries. before_build: is called with the
    number of engines built so far."""

    gpu: Machine
    library: Path
    version: str = "10.3.0.30"
    operators: tuple[str, ...] = tuple(OPERATORS)
    built: list[Built] = field(default_factory=list)
    deserialised: int = 0
    contexts: int = 0
    executed: int = 0
    refusal: dict[str, str] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)
    before_build: Callable[[int], None] = lambda count: None

    def module(self) -> ModuleType:
        """The package tensorrt."""
        module = ModuleType("tensorrt")
        module.__spec__ = ModuleSpec("tensorrt", None)
        old = self.version.startswith("10.")
        for name, value in {
            "__version__": self.version,
            "DataType": DataType,
            "TensorFormat": TensorFormat,
            "TensorIOMode": TensorIOMode,
            "MemoryPoolType": MemoryPoolType,
            "ExecutionContextAllocationStrategy": Strategy,
            "NetworkDefinitionCreationFlag": _OldNetworkFlag if old else _NewNetworkFlag,
            "ILogger": ILogger,
            "get_plugin_registry": partial(PluginRegistry, self),
            "Builder": partial(Builder, self),
            "OnnxParser": partial(OnnxParser, self),
            "Runtime": partial(Runtime, self),
        }.items():
            setattr(module, name, value)
        return module

    def log(self, logger: ILogger, message: str) -> None:
        logger.log(Severity.WARNING, "a warning that nobody asked for")
        logger.log(Severity.ERROR, message)

    def fails(self, what: str, logger: ILogger) -> bool:
        """Whether ``what`` is to fail now; logs why."""
        told = self.refusal.pop(what, None)
        if told is not None:
            self.log(logger, told)
        return told is not None


class ILogger(Strict):
    Severity = Severity

    def __init__(self) -> None:
        self._ready = True

    def log(self, severity: Severity, msg: str) -> None:
        raise NotImplementedError


class PluginRegistry(Strict):
    def __init__(self, trt: FakeTensorRT) -> None:
        self._trt = trt

    def load_library(self, plugin_path: str) -> object | None:
        assert isinstance(plugin_path, str)
        if Path(plugin_path) != self._trt.library:
            return None
        assert plugin_path not in self._trt.loaded, "a library is loaded once"
        self._trt.loaded.append(plugin_path)
        return object()

    def get_creator(self, type: str, version: str, plugin_namespace: str = "") -> object | None:
        known = self._trt.loaded and type in self._trt.operators
        return object() if known and (version, plugin_namespace) == ("1", "") else None


# ---- build ---------------------------------------------------------------------------------------


class Builder(Strict):
    def __init__(self, trt: FakeTensorRT, logger: ILogger) -> None:
        assert isinstance(logger, ILogger)
        trt.gpu.require_current()
        if trt.fails("start", logger):
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self._trt, self._logger = trt, logger

    def create_network(self, flags: int = 0) -> Network:
        old = self._trt.version.startswith("10.")
        typed = bool(flags >> _OldNetworkFlag.STRONGLY_TYPED & 1) if old else True
        return Network(typed)

    def create_builder_config(self) -> BuilderConfig:
        return BuilderConfig()

    def build_serialized_network(
        self, network: Network, config: BuilderConfig
    ) -> HostMemory | None:
        assert network._model is not None
        self._trt.before_build(len(self._trt.built))
        if self._trt.fails("build", self._logger):
            return None
        assert config._workspace is not None, "a builder without a limit takes all memory"
        tensors = (*network._inputs, *network._outputs)
        for tensor in tensors:
            assert tensor.allowed_formats == 1 << TensorFormat.LINEAR, tensor.name
        self._trt.built.append(
            Built(
                config._workspace,
                network._typed,
                config.max_aux_streams,
                {tensor.name: tensor._spec for tensor in network._inputs},
                {tensor.name: tensor._spec for tensor in network._outputs},
                network._model.ByteSize(),
            )
        )
        head = json.dumps({"version": self._trt.version}).encode() + b"\n"
        return HostMemory(MAGIC + head + network._model.SerializeToString())


class HostMemory(bytes):
    @property
    def nbytes(self) -> int:
        return len(self)


class BuilderConfig(Strict):
    settable: ClassVar[frozenset[str]] = frozenset({"max_aux_streams"})
    max_aux_streams = -1

    def __init__(self) -> None:
        self._workspace: int | None = None

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        assert pool is MemoryPoolType.WORKSPACE and pool_size > 0
        self._workspace = pool_size


class Tensor(Strict):
    settable: ClassVar[frozenset[str]] = frozenset({"allowed_formats"})
    allowed_formats = -1

    def __init__(self, name: str, spec: Spec) -> None:
        self._name, self._spec = name, spec

    @property
    def name(self) -> str:
        return self._name

    @property
    def dtype(self) -> DataType:
        return _DTYPES[self._spec[0]]

    @property
    def shape(self) -> tuple[int, ...]:
        return self._spec[1]


class Network(Strict):
    def __init__(self, typed: bool) -> None:
        self._typed = typed
        self._model: onnx.ModelProto | None = None
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def get_input(self, index: int) -> Tensor:
        return self._inputs[index]

    def get_output(self, index: int) -> Tensor:
        return self._outputs[index]


class ParserError(Strict):
    def __init__(self, node_name: str, desc: str) -> None:
        self._node_name, self._desc = node_name, desc

    def node_name(self) -> str:
        return self._node_name

    def desc(self) -> str:
        return self._desc


class OnnxParser(Strict):
    def __init__(self, trt: FakeTensorRT, network: Network, logger: ILogger) -> None:
        assert isinstance(network, Network) and isinstance(logger, ILogger)
        self._trt, self._network, self._logger = trt, network, logger
        self._errors: list[ParserError] = []

    def parse(self, model: bytes, path: str | None = None) -> bool:
        assert self._trt.loaded, "plugins are loaded before they are parsed"
        if told := self._trt.refusal.pop("parse", None):
            for line in told.split("|"):
                node, _, desc = line.rpartition(": ")
                self._errors.append(ParserError(node, desc))
            return False
        parsed = onnx.load_from_string(model)
        step = NetworkStep(parsed)
        self._network._model = parsed
        self._network._inputs[:] = [Tensor(*each) for each in step.inputs.items()]
        self._network._outputs[:] = [Tensor(*each) for each in step.outputs.items()]
        return True

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> ParserError:
        return self._errors[index]


# ---- run -----------------------------------------------------------------------------------------


class Runtime(Strict):
    def __init__(self, trt: FakeTensorRT, logger: ILogger) -> None:
        assert isinstance(logger, ILogger)
        trt.gpu.require_current()
        if trt.fails("start", logger):
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self._trt, self._logger = trt, logger

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Engine | None:
        trt = self._trt
        trt.gpu.require_current()
        assert trt.loaded, "plugins are loaded before an engine that has them"
        trt.deserialised += 1
        if trt.fails("deserialise", self._logger):
            return None
        assert serialized_engine.startswith(MAGIC), "what is deserialised was never built"
        head, _, model = serialized_engine[len(MAGIC) :].partition(b"\n")
        assert json.loads(head) == {"version": trt.version}, "a plan of another TensorRT"
        return Engine(trt, self._logger, NetworkStep(onnx.load_from_string(model)))


class Engine(Strict):
    def __init__(self, trt: FakeTensorRT, logger: ILogger, step: NetworkStep) -> None:
        self._trt, self._logger, self._step = trt, logger, step
        self._bound = {**step.inputs, **step.outputs}
        within = {name: spec for name, spec in step.specs.items() if name not in self._bound}
        lives = lifetimes(step.nodes, within, keep=False)
        self._offsets, self._workspace = place(lives)
        self._runner = trt.gpu.runner(step)
        need = self._runner.workspace_bytes
        self._scratch = self._workspace + need

    @property
    def num_io_tensors(self) -> int:
        return len(self._bound)

    def get_tensor_name(self, index: int) -> str:
        return list(self._bound)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self._step.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return _DTYPES[self._bound[name][0]]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._bound[name][1]

    @property
    def device_memory_size_v2(self) -> int:
        return self._scratch

    def create_execution_context(self, strategy: Strategy = Strategy.STATIC) -> Context | None:
        assert strategy is Strategy.USER_MANAGED
        self._trt.gpu.require_current()
        if self._trt.fails("context", self._logger):
            return None
        self._trt.contexts += 1
        return Context(self._trt, self._logger, self)


class Context(Strict):
    def __init__(self, trt: FakeTensorRT, logger: ILogger, engine: Engine) -> None:
        self._trt, self._logger, self._engine = trt, logger, engine
        self._addresses: dict[str, int] = {}
        self._memory: int | None = None
        self._warm = False

    def set_device_memory(self, memory: int, size: int) -> None:
        self._trt.gpu.check(memory, size)
        assert size >= self._engine._scratch
        self._memory = memory

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if self._trt.fails("address", self._logger):
            return False
        self._trt.gpu.check(memory, spec_bytes(self._engine._bound[name]))
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        trt, engine = self._trt, self._engine
        trt.gpu.require_current()
        if trt.fails("execute", self._logger):
            return False
        assert self._addresses.keys() == engine._bound.keys(), "a tensor has no address"
        assert self._memory is not None, "there is no scratch memory"
        if trt.gpu.capturing(stream_handle):
            assert self._warm, "the first step of a context is not captured"
        self._warm = True
        trt.executed += 1
        trt.gpu.poison(self._memory, engine._scratch, stream_handle)
        tensors = {
            name: self._addresses.get(name, self._memory + engine._offsets.get(name, 0))
            for name in engine._step.specs
        }
        engine._runner.enqueue(tensors, self._memory + engine._workspace, stream_handle)
        return True
