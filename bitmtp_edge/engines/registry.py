"""Which engines there are, which work here, and how one is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..bundle import Bundle
from ..errors import SettingError, UserError
from .base import Engine
from .cuda_library import driver_devices

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
    """unavailable: why the engine does not work here, or None. open: makes it over a bundle."""

    summary: str
    unavailable: Callable[[], str | None]
    open: Callable[[Bundle, EngineOptions], Engine]


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


def _cuda_unavailable() -> str | None:
    from .cuda_probe import unavailable

    return unavailable()


def _open_cuda(bundle: Bundle, options: EngineOptions) -> Engine:
    from .cuda import CudaEngine

    return CudaEngine(bundle, keep_tensors=options.keep_tensors)


ENGINES: dict[str, EngineKind] = {
    "cuda": EngineKind("our kernels on a GPU", _cuda_unavailable, _open_cuda),
    "cpu": EngineKind("our kernels on the processor", _cpu_unavailable, _open_cpu),
    "onnxruntime": EngineKind(
        "the exported file with its reference bodies: slow, trusted",
        _onnxruntime_unavailable,
        _open_onnxruntime,
    ),
}

# The order in which "auto" tries: onnxruntime is an oracle, never a choice.
AUTO = ("cuda", "cpu")


def open_engine(
    name: str,
    bundle: Bundle,
    options: EngineOptions | None = None,
    notice: Callable[[str], None] = lambda line: None,
) -> Engine:
    """Opens :func:`choose_engine`'s engine over ``bundle``."""
    options = options or EngineOptions()
    return choose_engine(name, options, notice).open(bundle, options)


def choose_engine(
    name: str, options: EngineOptions, notice: Callable[[str], None] = lambda line: None
) -> EngineKind:
    """Engine ``name``, or with "auto" the first of :data:`AUTO` that works here.

    ``notice`` is told, a line each, why "auto" passes over an engine for which there is a device.

    Raises UserError for an unknown engine, threads out of range, or with the reason why it does not
    work.
    """
    if not 0 <= options.threads <= MOST_THREADS:
        raise SettingError(
            "threads",
            f"is {options.threads}: expected 1 to {MOST_THREADS}, or 0 for one a processor",
        )
    if name == "auto":
        reasons = []
        for candidate in AUTO:
            reason = ENGINES[candidate].unavailable()
            if reason is None:
                return ENGINES[candidate]
            if candidate == "cuda" and driver_devices():
                notice(f"engine cuda is not used: {reason}")
            reasons.append(f"{candidate}: {reason}")
        raise UserError(f"no engine works here ({'; '.join(reasons)})")
    if name not in ENGINES:
        raise UserError(f"no engine {name!r}: choose auto, {', '.join(ENGINES)}")
    reason = ENGINES[name].unavailable()
    if reason is not None:
        raise UserError(f"engine {name} does not work here: {reason}")
    return ENGINES[name]
