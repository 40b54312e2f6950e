"""Finds the model families: every module of this package that defines ``FAMILIES``."""

from __future__ import annotations

import importlib
import pkgutil

from bitmtp_edge.errors import UserError

from .base import Family


def known_families() -> tuple[Family, ...]:
    """All families, by name."""
    package = importlib.import_module(__package__)
    found: list[Family] = []
    for module in pkgutil.iter_modules(package.__path__, f"{__package__}."):
        found.extend(getattr(importlib.import_module(module.name), "FAMILIES", ()))
    return tuple(sorted(found, key=lambda family: family.name))


def find_family(name: str, where: str, architecture: str | None = None) -> Family:
    """The family of a ``model_type`` (GGUF: ``general.architecture``); UserError lists the known
    ones.

    Where the file also names an ``architecture`` class, that has to agree: some models carry
    another family's model type.
    """
    families = known_families()
    for family in families:
        if family.name == name and architecture in (None, family.architecture):
            return family
    known = ", ".join(family.name for family in families)
    stated = f"{name!r} ({architecture})" if architecture else repr(name)
    raise UserError(f"{where}: unknown architecture {stated}; known: {known}")
