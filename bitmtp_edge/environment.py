"""The machine that a measurement ran on, as its report tells it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import __version__
from .engines.base import Engine


@dataclass(frozen=True)
class Environment:
    """Where and when. date: UTC. processor: None where the system does not tell.
    instructions: the instruction set of the ``cpu`` engine's kernels, None on other engines.
    device: the GPU that the engine runs on, None for the processor."""

    date: str
    system: str
    processor: str | None
    processors: int
    engine: str
    threads: int | None
    instructions: str | None
    device: str | None
    versions: dict[str, str]


def environment(engine: Engine) -> Environment:
    """Of this machine and ``engine``, now."""
    instructions = None
    if engine.name == "cpu":
        from .engines.cpu_library import isas

        instructions = isas()[0]
    own = {"cuda": ("torch",), "tensorrt": ("tensorrt", "pycuda")}.get(engine.name, ())
    return Environment(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        processors=os.cpu_count() or 1,
        engine=engine.name,
        threads=engine.threads,
        instructions=instructions,
        device=engine.device,
        versions=_versions(("numpy", "tokenizers", "onnxruntime", *own)),
    )


def _processor(root: Path = Path("/")) -> str | None:
    """Its name; of a board's, which has none of its own, what the device tree calls the board."""
    lines = (line.partition(":") for line in _text(root / "proc/cpuinfo").splitlines())
    named = next((value.strip() for key, _, value in lines if key.strip() == "model name"), None)
    return named or _text(root / "proc/device-tree/model").strip("\0 \n") or None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {"bitmtp-edge": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
