"""Decoding: policies over one fixed-shape step.

``loop`` is the algorithm; ``generate`` makes a reply of it. A policy (``policies``) gives drafts
and says which need no verifying, a choice (``sampling``) takes tokens, ``state`` knows which rows
lie in history, ``window`` and ``replay_states`` give a step its inputs and its shape, ``stopping``
says where a reply ends. ``forced`` lets a benchmark dictate what comes of an iteration.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import SettingError

# By name: here, where the command line gets them without NumPy.
POLICIES = ("ar", "nested", "confidence", "speculative", "hybrid")

SETTINGS: dict[str, tuple[str, ...]] = {
    "ar": (),
    "nested": ("gamma",),
    "confidence": ("block", "tau"),
    "speculative": ("block",),
    "hybrid": ("block", "tau", "min_prefix"),
}
"""What can be set of each policy."""


def check_used(policies: Sequence[str], **settings: object) -> None:
    """Raises SettingError for a setting, not None or empty, that none of ``policies`` has."""
    for name, value in settings.items():
        if value in (None, ()) or any(name in SETTINGS[policy] for policy in policies):
            continue
        users = " or ".join(policy for policy in POLICIES if name in SETTINGS[policy])
        raise SettingError(
            name,
            f"has no effect on policy {' or '.join(policies)}: leave it out, or take "
            f"policy {users}",
        )
