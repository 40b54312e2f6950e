"""The TensorRT plugin library through ctypes: CUDA graphs, beside what every library of a GPU has.

The mirror of plugins/include/bitmtp/tensorrt.h. TensorRT loads the same file for the operators.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path

from ..bundle import sha256_of
from ..errors import UserError
from .gpu_library import STEP_FUNCTIONS, LaunchError, StepLibrary, check
from .native_library import Functions, load

PATH_VARIABLE = "BITMTP_TENSORRT_LIBRARY"
BUILD = "build it with  pip install . -C cmake.define.BITMTP_TENSORRT=ON"
FILE = "libbitmtp_tensorrt.so"
VERSION = 1

_FUNCTIONS: Functions = {
    **STEP_FUNCTIONS,
    "bitmtp_tensorrt_abi_version": (c_int32, ()),
    "bitmtp_tensorrt_architectures": (c_char_p, ()),
    "bitmtp_graph_begin": (c_int32, (c_void_p,)),
    "bitmtp_graph_end": (c_int32, (c_void_p, POINTER(c_void_p))),
    "bitmtp_graph_launch": (c_int32, (c_void_p, c_void_p)),
    "bitmtp_graph_nodes": (c_int64, (c_void_p,)),
    "bitmtp_graph_destroy": (None, (c_void_p,)),
}


class PluginLibrary(StepLibrary):
    """path: of the file, which is TensorRT's to load as well. Raises UserError where it is missing
    or does not fit."""

    def __init__(self) -> None:
        super().__init__(_library(os.environ.get(PATH_VARIABLE)))
        self.path = Path(self._library._name)

    @functools.cached_property
    def sha256(self) -> str:
        return sha256_of(self.path)

    @property
    def architectures(self) -> str:
        """The GPUs that it has kernels for, as CMake writes them: "87-real"."""
        return str(self._library.bitmtp_tensorrt_architectures().decode())

    def capture(self, enqueue: Callable[[], None], stream: int) -> CapturedGraph:
        """What ``enqueue`` puts on ``stream``, as one graph. Nothing is run."""
        library = self._library
        collecting = gc.isenabled()
        gc.disable()  # a finaliser of anything CUDA's could end the capture
        try:
            check(library.bitmtp_graph_begin(stream))
            try:
                enqueue()
            except BaseException:
                with suppress(LaunchError):
                    check(library.bitmtp_graph_end(stream, None))
                raise
            handle = c_void_p()
            check(library.bitmtp_graph_end(stream, byref(handle)))
        finally:
            if collecting:
                gc.enable()
        return CapturedGraph(library, handle)


class CapturedGraph:
    """A graph to launch again and again, until it is closed or nobody has it."""

    def __init__(self, library: ctypes.CDLL, handle: c_void_p) -> None:
        self._library = library
        self._handle = handle

    @property
    def nodes(self) -> int:
        """Kernels, copies and fills."""
        return int(self._library.bitmtp_graph_nodes(self._handle))

    def launch(self, stream: int) -> None:
        check(self._library.bitmtp_graph_launch(self._handle, stream))

    def __del__(self) -> None:
        self._library.bitmtp_graph_destroy(self._handle)


@functools.cache
def _library(path: str | None) -> ctypes.CDLL:
    library = load(FILE, "TensorRT plugin", _FUNCTIONS, BUILD, path)
    found = library.bitmtp_tensorrt_abi_version()
    if found != VERSION:
        raise UserError(f"{FILE} has ABI version {found}, expected {VERSION}: {BUILD}")
    return library
