"""The check that an engine which builds nothing ahead runs every replay state of a bundle."""

from __future__ import annotations

from collections.abc import Sequence

from ..bundle import Bundle
from ..decode.window import causal_window
from ..engines.base import ReplayState
from ..engines.registry import EngineOptions, choose_engine
from ..progress import Progress


def run_each_once(bundle: Bundle, engine: str, states: Sequence[ReplayState]) -> dict[str, int]:
    """Makes the plan of each state on ``engine`` and runs it once, without history. Returns the
    engine's memory as it was at the end.

    Raises UserError where the engine does not work here, or a state does not.
    """
    with (
        choose_engine(engine, EngineOptions()).open(bundle, EngineOptions()) as opened,
        Progress(len(states), f"replay states on {engine}", "states") as progress,
    ):
        for state in sorted(states, key=lambda state: state.segment):
            opened.grow(state.segment, 0)
            heads = state.outputs
            window = causal_window([0] * state.width, 0, (), state.width, heads, heads)
            opened.replay(state, window)
            progress.advance()
        return opened.memory()
