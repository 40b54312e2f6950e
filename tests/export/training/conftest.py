"""Tiny training runs: one processor is quicker for them than several that wait for each other."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from .tiny_runs import Run, alphabet_run


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def alphabet(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run on texts that count through the alphabet. Read-only."""
    from bitmtp_edge.export.training.run import train

    run = alphabet_run(tmp_path_factory.mktemp("alphabet"), steps=90)
    train(run.plan(), "cpu", resume=False)
    return run
