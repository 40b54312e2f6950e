"""Which replay states are built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from ..bundle import Bundle
from ..decode.replay_states import ReplayStates
from ..engines.base import ReplayState
from ..engines.tensorrt_manifest import named_state, state_name
from ..errors import UserError


def chosen_states(bundle: Bundle, patterns: Sequence[str] = ()) -> list[ReplayState]:
    """The states whose names fit one of ``patterns``, as of files (``verify-m1-*``); without any,
    all that greedy decoding with the bundle's own block takes.

    Patterns choose from these and from their variants for sampling, and where none of those fit,
    from states for smaller blocks too. Raises UserError for a pattern that fits nothing.
    """
    states = ReplayStates.of(bundle)
    usual = states.all()
    if not patterns:
        return list(usual)
    usual += states.all(logits=True)
    blocks = [states.with_draft_outputs(size) for size in range(1, states.draft_outputs)]
    every = [state for block in blocks for state in (*block.all(), *block.all(logits=True))]
    chosen: dict[ReplayState, None] = {}
    for pattern in patterns:
        found = _fitting(usual, pattern) or _fitting(every, pattern) or _exact(states, pattern)
        if not found:
            raise UserError(
                f"--states {pattern!r} fits no replay state of {bundle.path}: expected a name such "
                f"as {state_name(usual[0])}, or a pattern such as 'verify-*' or '*-logits'"
            )
        chosen.update(dict.fromkeys(found))
    return list(chosen)


def _fitting(states: Iterable[ReplayState], pattern: str) -> list[ReplayState]:
    return [state for state in states if fnmatchcase(state_name(state), pattern)]


def _exact(states: ReplayStates, name: str) -> list[ReplayState]:
    """The state of that very name, where a step could have its shape: ``verify`` replays some that
    decoding does not."""
    state = named_state(name)
    if state is None or state.segment not in states.segments:
        return []
    widths = states.draft_widths
    if state.role == "verify":
        widths = (*states.verify_widths, states.prefill_chunk)
    return [state] if state.width in widths and 1 <= state.outputs <= state.width else []
