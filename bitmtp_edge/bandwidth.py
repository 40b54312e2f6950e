"""How fast the memory that an engine reads its weights from can be read at all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from .engines.base import Engine

GPU_BYTES = 2 << 30  # at most, and an eighth of what is free: far more than any cache holds
HOST_BYTES = 256 << 20
RUNS = 10


@dataclass(frozen=True)
class Bandwidth:
    """bytes_per_s: the best of some runs. how: what was run."""

    bytes_per_s: float
    how: str


def read_bandwidth(engine: Engine) -> Bandwidth:
    """Measures the memory of what ``engine`` runs on, which must have nothing else to do: its GPU's
    with PyTorch, else the host's with NumPy on the engine's threads."""
    return _gpu() if engine.name == "cuda" else _host(engine.threads or 1)


def _gpu() -> Bandwidth:
    import torch

    try:
        return max(_gpu_runs(), key=lambda each: each.bytes_per_s)
    finally:
        torch.cuda.empty_cache()


def _gpu_runs() -> list[Bandwidth]:
    """Of reading alone, and of copying: neither is always the faster."""
    import torch

    size = min(GPU_BYTES, torch.cuda.mem_get_info()[0] // 8)
    source = torch.ones(size // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    called = f"{size / 2**30:.2g} GiB in PyTorch"

    def copy() -> None:
        target.copy_(source)

    return [
        Bandwidth(size / _gpu_seconds(source.sum), f"read by a sum of {called}"),
        Bandwidth(2 * size / _gpu_seconds(copy), f"read and written by a copy of {called}"),
    ]


def _gpu_seconds(call: Callable[[], object]) -> float:
    import torch

    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best = float("inf")
    for _ in range(RUNS):
        begin.record()
        call()
        end.record()
        end.synchronize()
        best = min(best, 1e-3 * begin.elapsed_time(end))
    return best


def _host(threads: int) -> Bandwidth:
    parts = np.array_split(np.ones(HOST_BYTES // 8, np.int64), threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(RUNS):
            began = perf_counter()
            list(pool.map(np.sum, parts))
            best = min(best, perf_counter() - began)
    share = "one thread" if threads == 1 else f"{threads} threads"
    how = f"read by a sum of {HOST_BYTES >> 20} MiB in NumPy on {share}"
    return Bandwidth(HOST_BYTES / best, how)
