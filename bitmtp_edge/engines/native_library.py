"""Loading of our libraries, and of none whose ABI is another version."""

from __future__ import annotations

import ctypes
import importlib.resources
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from ..errors import UserError
from . import abi

Functions = Mapping[str, tuple[Any, tuple[Any, ...]]]
"""Result and argument types of a library's functions, one of which is NAME_abi_version."""


def load(
    file: str, kind: str, functions: Functions, fix: str, path: str | None = None
) -> ctypes.CDLL:
    """The library ``file`` of the package, or that at ``path``, with its functions declared.

    kind: what messages call it. fix: what they say to do. Raises UserError where it is not there,
    does not load, lacks a function or has another ABI version.
    """
    try:
        with ExitStack() as stack:
            if path is None:
                # A package of its own: in an editable install it lies apart from the sources.
                packaged = importlib.resources.files("bitmtp_edge._lib") / file
                if not packaged.is_file():
                    raise ModuleNotFoundError(file)
                path = str(stack.enter_context(importlib.resources.as_file(packaged)))
            library = ctypes.CDLL(path)
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except ModuleNotFoundError:
        raise UserError(f"the {kind} library is not installed: {fix}") from None
    except (OSError, AttributeError) as error:
        raise UserError(f"the {kind} library does not load ({error}): {fix}") from None
    version = next(name for name in functions if name.endswith("_abi_version"))
    found = getattr(library, version)()
    if found != abi.VERSION:
        raise UserError(f"{file} has ABI version {found}, expected {abi.VERSION}: {fix}")
    return library
