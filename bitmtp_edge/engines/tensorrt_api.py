"""TensorRT's Python package: which releases are taken, what it logs, and our plugins in it.

No TensorRT that builds or runs was at hand when this was written. What is called, here, in
:mod:`.tensorrt_plans` and in ``building``, was looked up for both ends of the range in the sources
of the bindings (github.com/NVIDIA/TensorRT, python/src on the branches release/10.3 and
release/11.1). Tests hold the runtime's part to the bindings of tensorrt-lean 11.4, and run the
builder's on those of TensorRT-RTX 1.7.

- The network flag STRONGLY_TYPED is what 10.3 needs; 11 keeps the name and ignores it. Precision
  flags, calibrators and ``ITensor.dtype = ...`` are gone in 11, and nothing here needs them.
- ``ICudaEngine.device_memory_size_v2`` and ``IExecutionContext.set_device_memory(memory, size)``
  are in both; ``device_memory_size`` is gone in 11.
- ``create_execution_context(strategy)`` with USER_MANAGED is in both;
  ``create_execution_context_without_device_memory`` is gone in 11.
- ``deserialize_cuda_engine(buffer)`` is in both. Its reader classes are not: IStreamReader is gone
  in 11, IStreamReaderV2 came with 10.7. A plan without weights is small enough for a buffer.
- ``IBuilderConfig.plugins_to_serialize`` is not used: every plan would hold a copy of our library,
  and ``engine_host_code_allowed`` would have to let plans bring code of their own.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from ..errors import UserError
from ..operators import OPERATORS, PLUGIN_VERSION
from .tensorrt_library import PluginLibrary

OLDEST = (10, 3)
NEWEST = 11  # of whose releases all are taken
PLUGIN_NAMESPACE = ""


@functools.cache
def import_tensorrt() -> ModuleType:
    """The package ``tensorrt``. Raises UserError where it is missing or of another age."""
    try:
        import tensorrt
    except ImportError as error:
        raise UserError(
            f"TensorRT's Python package does not load ({error}): it comes with JetPack (sudo apt "
            "install python3-libnvinfer), and a virtual environment sees it only if it was made "
            "with --system-site-packages"
        ) from None
    version = release(tensorrt.__version__)
    if not version >= OLDEST or version[0] > NEWEST:
        raise UserError(
            f"TensorRT {tensorrt.__version__} is installed, expected "
            f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST}"
        )
    found: ModuleType = tensorrt
    return found


def release(version: str) -> tuple[int, int]:
    """(10, 3) of "10.3.0.30"; (0, 0) where it is no version."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


class ErrorLog:
    """What TensorRT reports as errors. ``handle`` is its ILogger; one serves a whole process, as
    TensorRT keeps the first that it is given."""

    def __init__(self) -> None:
        trt: Any = import_tensorrt()
        worst = int(trt.ILogger.Severity.ERROR)
        errors: list[str] = []

        class Logger(trt.ILogger):
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, message: str) -> None:
                if int(severity) <= worst:  # a smaller number is worse
                    errors.append(" ".join(message.split()))

        self._errors = errors
        self.handle = Logger()

    def take(self) -> list[str]:
        """The errors since the last call, a line each."""
        taken, self._errors[:] = self._errors[:], []
        return taken

    def told(self, fallback: str = "TensorRT does not say why") -> str:
        """The same in one line."""
        return "; ".join(dict.fromkeys(self.take())) or fallback


@functools.cache
def error_log() -> ErrorLog:
    return ErrorLog()


def started(kind: str) -> Any:
    """TensorRT's object ``kind``, "Runtime" or "Builder", in the context that is current. Raises
    UserError where TensorRT makes none."""
    log = error_log()
    log.take()
    try:
        return getattr(import_tensorrt(), kind)(log.handle)
    except TypeError:  # what the bindings make of a null pointer
        raise UserError(f"TensorRT does not start ({log.told()})") from None


def register_plugins(library: PluginLibrary) -> None:
    """Has TensorRT load the plugin library, once. Raises UserError where it does not, or where an
    operator is missing in it."""
    _load_plugins(str(library.path))


@functools.cache
def _load_plugins(path: str) -> None:
    registry = import_tensorrt().get_plugin_registry()
    log = error_log()
    log.take()
    if registry.load_library(path) is None:
        raise UserError(f"TensorRT does not load {path}: {log.told()}")
    for name in OPERATORS:
        if registry.get_creator(name, PLUGIN_VERSION, PLUGIN_NAMESPACE) is None:
            raise UserError(f"{path} has no plugin {name!r}: build it again, or update this SDK")
