"""``doctor``: what of the SDK works on this machine, and what to do about the rest."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from .board_checks import board_checks, tensorrt_checks
from .engines.cuda_library import driver_devices
from .engines.registry import ENGINES
from .errors import UserError
from .findings import Finding
from .host import read_host

# Package on PyPI -> the extra that brings it and what needs it; on a board `jetson` brings onnx.
_OPTIONAL = {
    "onnx": ("export", "export, verify, build for TensorRT"),
    "gguf": ("export", "export of GGUF files"),
    "onnxruntime": ("export", "engine onnxruntime, verify"),
}

# Packages on PyPI that training needs, all of the extra `train`.
_TRAINING = ("torch", "matplotlib", "safetensors")

_NEVER_RUN = "it has run with a stand-in for TensorRT alone, and never on a Jetson"
_SWEPT = (9, 0)  # compute capability of the GPU that the CUDA kernels are tested on


def examine(root: Path = Path("/")) -> Iterator[Finding]:
    """Looks at this machine, whose files are below ``root``. Nothing heavy is imported but what an
    engine's own probe imports."""
    machine = f"{platform.system()} {platform.machine()}"
    yield Finding("python", "ok", f"{platform.python_version()} on {machine} ({sys.executable})")
    yield from _cpu_library()
    for name, kind in ENGINES.items():
        reason = kind.unavailable()
        if name == "tensorrt" and reason is None:
            yield Finding("engine tensorrt", "untested", f"{kind.summary}: {_NEVER_RUN}")
            continue
        yield Finding(f"engine {name}", "missing" if reason else "ok", reason or kind.summary)
        if name == "cuda" and reason is None:
            yield _cuda_device()
    if ENGINES["onnxruntime"].unavailable() is None:
        from .engines.onnxruntime import import_onnxruntime

        runtime = import_onnxruntime()
        providers = ", ".join(runtime.get_available_providers())
        yield Finding("onnxruntime providers", "ok", f"{providers} (version {runtime.__version__})")
        yield Finding("--provider", "untested", "nothing but CPUExecutionProvider has been run")
    host = read_host(root)
    optional = dict(_OPTIONAL)
    if host.jetson:
        optional["onnx"] = ("jetson", "build for TensorRT, verify, export")
    for package, (extra, purpose) in optional.items():
        version = _version(package)
        if version is None and package == "onnxruntime":
            version = _version("onnxruntime-gpu")
        if version is None:
            fix = f"for {purpose}; in a checkout: pip install '.[{extra}]'"
            yield Finding(f"package {package}", "missing", fix)
        else:
            yield Finding(f"package {package}", "ok", f"{version}, for {purpose}")
    yield _training()
    yield from tensorrt_checks(host)
    if host.jetson:
        yield from board_checks(host, root)
    yield _power(root)


def _cpu_library() -> Iterator[Finding]:
    from .engines import cpu_library as lib

    if ENGINES["cpu"].unavailable() is not None:
        return  # the engine's own line says why
    with lib.Pool(0) as pool:
        threads = pool.threads
    best, *others = lib.isas()
    detail = f"{best} in use, {threads} threads"
    yield Finding("cpu kernels", "ok", detail + (f" (also {', '.join(others)})" if others else ""))
    if platform.machine() == "aarch64":
        yield Finding("cpu kernels on Arm", "untested", "swept under emulation only, never timed")


def _cuda_device() -> Finding:
    from .engines.cuda_device import CudaDevice

    device = CudaDevice()
    major, minor = device.capability
    detail = f"{device.name}, compute capability {major}.{minor}"
    if device.capability != _SWEPT:
        swept = "{}.{}".format(*_SWEPT)
        return Finding(
            "cuda device", "untested", f"{detail}: the kernels have run on {swept} alone"
        )
    return Finding("cuda device", "ok", detail)


def _power(root: Path) -> Finding:
    """The first source that gives a reading; each has a second or a few to give it."""
    from .power.registry import open_source
    from .power.source import Where

    try:
        with open_source(where=Where(root)) as source:
            reading = source.read()
    except UserError as error:
        return Finding("power", "missing", str(error))
    watts = f"{reading.total_mw / 1000:.1f} W ({reading.total_is})"
    return Finding("power", "ok", f"{watts}, by {reading.source}")


def _training() -> Finding:
    """Whether `train` could run; PyTorch itself is not asked, because loading it takes seconds."""
    lost = [package for package in _TRAINING if _version(package) is None]
    if lost:
        fix = f"needs {', '.join(lost)}; in a checkout: pip install '.[train]'"
        return Finding("training", "missing", fix)
    build = _version("torch") or ""
    devices = driver_devices()
    if not devices:
        return Finding("training", "ok", f"torch {build}, no CUDA device: enough for a rehearsal")
    if build.endswith("+cpu"):
        detail = f"torch {build} cannot use the CUDA device here: install a build for it"
        return Finding("training", "missing", detail)
    plural = "device" if devices == 1 else f"devices, of which {devices - 1} stay idle"
    return Finding("training", "ok", f"torch {build}, {devices} CUDA {plural}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
