"""Tiny checkpoints and bundles, made once a session."""

from __future__ import annotations

import pytest

from bitmtp_edge.bundle import Bundle

from .tiny_models import Tiny, write_folder, write_gguf


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A Hugging Face folder of a tied Llama in F16. Read-only."""
    return write_folder(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The same model as a Q8_0 GGUF. Read-only."""
    return write_gguf(tmp_path_factory.mktemp("tiny") / "llama.Q8_0.gguf")


@pytest.fixture(scope="session")
def tiny_bundle(tiny_llama: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The bundle of ``tiny_llama`` with nested KV. Read-only."""
    from bitmtp_edge.export.pipeline import export_bundle

    return export_bundle(tiny_llama.path, tmp_path_factory.mktemp("tiny") / "bundle")
