"""The TensorRT plugin library through ctypes, beside what every library of a GPU has.

The mirror of plugins/include/bitmtp/tensorrt.h. TensorRT loads the same file for the operators.
"""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import c_char_p, c_int32
from pathlib import Path

from ..bundle import sha256_of
from ..errors import UserError
from .gpu_library import STEP_FUNCTIONS, StepLibrary
from .native_library import Functions, load

PATH_VARIABLE = "BITMTP_TENSORRT_LIBRARY"
BUILD = "build it with  pip install . -C cmake.define.BITMTP_TENSORRT=ON"
FILE = "libbitmtp_tensorrt.so"
VERSION = 1

_FUNCTIONS: Functions = {
    **STEP_FUNCTIONS,
    "bitmtp_tensorrt_abi_version": (c_int32, ()),
    "bitmtp_tensorrt_architectures": (c_char_p, ()),
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


@functools.cache
def _library(path: str | None) -> ctypes.CDLL:
    library = load(FILE, "TensorRT plugin", _FUNCTIONS, BUILD, path)
    found = library.bitmtp_tensorrt_abi_version()
    if found != VERSION:
        raise UserError(f"{FILE} has ABI version {found}, expected {VERSION}: {BUILD}")
    return library
