"""The plugin library under test. Where it is not built the tests of this folder are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .conformance import Session

LIBRARY, CONFORMANCE = "BITMTP_TENSORRT_LIBRARY", "BITMTP_TENSORRT_CONFORMANCE"


def _path(variable: str) -> str:
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} is not set: tools/test_tensorrt.sh (make test-cross) builds it")
    return path


@pytest.fixture(scope="session")
def plugin_library() -> str:
    """Path of libbitmtp_tensorrt.so."""
    return _path(LIBRARY)


@pytest.fixture(scope="session")
def session(plugin_library: str) -> Iterator[Session]:
    """The library in the hands of what stands in for TensorRT."""
    session = Session(_path(CONFORMANCE), plugin_library)
    yield session
    session.close()
