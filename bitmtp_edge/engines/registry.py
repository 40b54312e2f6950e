"""Which engines there are, which work here, and how one is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TypeVar

from ..bundle import Bundle
from ..errors import SettingError, UserError
from .base import Engine, NotBuilt
from .cuda_library import driver_devices

Result = TypeVar("Result")

MOST_THREADS = 256  # of the CPU library; ONNX Runtime takes minutes with more


@dataclass(frozen=True)
class EngineOptions:
    """threads: 0 takes every processor. provider: ONNX Runtime's provider, None its CPU.
    keep_tensors: the engine keeps every tensor of a step for :meth:`Engine.tensors`."""

    threads: int = 0
    provider: str | None = None
    keep_tensors: bool = False


@dataclass(frozen=True)
class EngineKind:
    """unavailable: why the engine does not work here, or None. open: makes it over a bundle, or
    raises NotBuilt. missed: whether who has this machine should hear why "auto" passes over it."""

    summary: str
    unavailable: Callable[[], str | None]
    open: Callable[[Bundle, EngineOptions], Engine]
    missed: Callable[[], bool] = lambda: False


def _cpu_unavailable() -> str | None:
    from . import cpu_library

    try:
        cpu_library.isas()
    except UserError as error:
        return str(error)
    return None


def _open_cpu(bundle: Bundle, options: EngineOptions) -> Engine:
    from .cpu import CpuEngine

    return CpuEngine(bundle, threads=options.threads, keep_tensors=options.keep_tensors)


def _onnxruntime_unavailable() -> str | None:
    from .onnxruntime import import_onnxruntime

    try:
        import_onnxruntime()
    except UserError as error:
        return str(error)
    return None


def _open_onnxruntime(bundle: Bundle, options: EngineOptions) -> Engine:
    from .onnxruntime import OnnxRuntimeEngine

    return OnnxRuntimeEngine(bundle, provider=options.provider, threads=options.threads)


def _tensorrt_unavailable() -> str | None:
    from .tensorrt_probe import unavailable

    return unavailable()


def _open_tensorrt(bundle: Bundle, options: EngineOptions) -> Engine:
    from .tensorrt import TensorRTEngine

    return TensorRTEngine(bundle)


def _cuda_unavailable() -> str | None:
    from .cuda_probe import unavailable

    return unavailable()


def _open_cuda(bundle: Bundle, options: EngineOptions) -> Engine:
    from .cuda import CudaEngine

    return CudaEngine(bundle, keep_tensors=options.keep_tensors)


ENGINES: dict[str, EngineKind] = {
    "tensorrt": EngineKind(
        "our kernels as plugins of TensorRT",
        _tensorrt_unavailable,
        _open_tensorrt,
        lambda: driver_devices() > 0 and find_spec("tensorrt") is not None,
    ),
    "cuda": EngineKind(
        "our kernels on a GPU", _cuda_unavailable, _open_cuda, lambda: driver_devices() > 0
    ),
    "cpu": EngineKind("our kernels on the processor", _cpu_unavailable, _open_cpu),
    "onnxruntime": EngineKind(
        "the exported file with its reference bodies: slow, trusted",
        _onnxruntime_unavailable,
        _open_onnxruntime,
    ),
}

# The order in which "auto" tries: onnxruntime is an oracle, never a choice.
AUTO = ("tensorrt", "cuda", "cpu")


def open_engine(
    name: str,
    bundle: Bundle,
    options: EngineOptions | None = None,
    notice: Callable[[str], None] = lambda line: None,
) -> Engine:
    """Opens engine ``name`` over ``bundle``; with "auto" the first of :data:`AUTO` that works here
    and for which the bundle has all it needs.

    ``notice`` is told, a line each, why "auto" passes over an engine that this machine is for.
    Raises as :func:`choose_engine`, and what opening an engine raises.
    """
    options = options or EngineOptions()
    _check(options)
    if name == "auto":
        return _first(lambda kind: kind.open(bundle, options), notice)
    return choose_engine(name, options).open(bundle, options)


def choose_engine(name: str, options: EngineOptions) -> EngineKind:
    """Engine ``name``, or with "auto" the first of :data:`AUTO` that works here.

    Raises UserError for an unknown engine, threads out of range, or with the reason why it does not
    work.
    """
    _check(options)
    if name == "auto":
        return _first(lambda kind: kind, lambda line: None)
    if name not in ENGINES:
        raise UserError(f"no engine {name!r}: choose auto, {', '.join(ENGINES)}")
    reason = ENGINES[name].unavailable()
    if reason is not None:
        raise UserError(f"engine {name} does not work here: {reason}")
    return ENGINES[name]


def _first(attempt: Callable[[EngineKind], Result], notice: Callable[[str], None]) -> Result:
    """What ``attempt`` gives for the first of :data:`AUTO` that works here and is built."""
    reasons = []
    for name in AUTO:
        kind = ENGINES[name]
        reason = kind.unavailable()
        if reason is None:
            try:
                return attempt(kind)
            except NotBuilt as error:
                reason = str(error)
        if kind.missed():
            notice(f"engine {name} is not used: {reason}")
        reasons.append(f"{name}: {reason}")
    raise UserError(f"no engine works here ({'; '.join(reasons)})")


def _check(options: EngineOptions) -> None:
    if not 0 <= options.threads <= MOST_THREADS:
        raise SettingError(
            "threads",
            f"is {options.threads}: expected 1 to {MOST_THREADS}, or 0 for one a processor",
        )
