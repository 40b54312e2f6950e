"""The runtimes that ``bench`` compares: the full one, and what it is without one part or another
(BitMTP section 3.4 and Table 5)."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UserError


@dataclass(frozen=True)
class Runtime:
    """Which parts a runtime of engine ``cuda`` has.

    width_specialised (M1): a step has the narrowest width that holds its rows and the outputs it
    needs; without, every decode step has the widest of both, so that one graph serves a role.
    shared_kv (M2): all replay states have one KV buffer; without, each has its own, and what a
    state lacks of the history is copied to it where decoding comes to it from another. hoisted
    (M3): windows are made on the device, where need be before the host reads the drafts, and steps
    that are sure to follow begin then; without, windows are made on the host, once it has decided.

    All give the same tokens.
    """

    width_specialised: bool
    shared_kv: bool
    hoisted: bool


FULL = "full"
GENERIC = "generic"
RUNTIMES = {
    FULL: Runtime(True, True, True),
    GENERIC: Runtime(False, False, False),
    "m1": Runtime(True, False, False),
    "m2": Runtime(False, True, False),
    "m3": Runtime(False, False, True),
}


def none_of(engine: str) -> UserError:
    """What asking for a runtime of another ``engine`` than ``cuda`` raises."""
    return UserError(
        f"a runtime is one of engine cuda, and this is engine {engine}: "
        "add --engine cuda, or leave --runtime out"
    )
