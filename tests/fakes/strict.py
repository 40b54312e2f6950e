"""Objects that take no attribute which the real ones do not have."""

from __future__ import annotations

from typing import ClassVar


class Strict:
    """Public attributes can be set only where ``settable`` names them."""

    settable: ClassVar[frozenset[str]] = frozenset()

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and name not in self.settable:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be set")
        object.__setattr__(self, name, value)
