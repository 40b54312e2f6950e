"""The runtimes that ``bench`` compares: the full one, and what it is without one part or another
(BitMTP section 3.4 and Table 5)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Runtime:
    """Which parts a runtime of engine ``cuda`` has.

    width_specialised (M1): a step has the narrowest width that holds its rows and the outputs it
    needs; without, every decode step has the widest of both, so that one graph serves a role.
    shared_kv (M2): all replay states have one KV buffer; without, each has its own, and what a
    state lacks of the history is copied to it where decoding comes to it from another. hoisted
    (M3): the verify window is made on the device before the host reads the drafts; without, on the
    host, once it has decided to verify.

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
