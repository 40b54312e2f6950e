"""Names of replay states, and which of them a pattern chooses."""

from __future__ import annotations

import pytest

from bitmtp_edge.building.states import chosen_states
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import ReplayState
from bitmtp_edge.engines.tensorrt_manifest import named_state, state_name
from bitmtp_edge.errors import UserError


def test_names(tiny_ternary_bundle: Bundle) -> None:
    assert state_name(ReplayState(9, 1, 1024, "verify")) == "verify-m9-h1-c1024"
    assert state_name(ReplayState(5, 4, 512, "draft", True)) == "draft-m5-h4-c512-logits"
    states = ReplayStates.of(tiny_ternary_bundle)
    every = [*states.all(), *states.all(logits=True)]
    assert [named_state(state_name(state)) for state in every] == every


@pytest.mark.parametrize(
    "name", ["", "verify", "verify-m1-h1-c512.plan", "ar-m1-h1-c512", "verify-m1-h1-c" + 30 * "9"]
)
def test_no_names(name: str) -> None:
    assert named_state(name) is None


def test_without_patterns(tiny_ternary_bundle: Bundle) -> None:
    """All that greedy decoding with the bundle's own block asks for, in every segment."""
    assert chosen_states(tiny_ternary_bundle) == list(ReplayStates.of(tiny_ternary_bundle).all())


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (["verify-m1-*[0-9]"], ["verify-m1-h1-c512", "verify-m1-h1-c1024"]),
        (["verify-m1-*c512*"], ["verify-m1-h1-c512", "verify-m1-h1-c512-logits"]),
        (["verify-m1-*-c512", "*-m1-*-c512"], ["verify-m1-h1-c512", "draft-m1-h1-c512"]),
        # Of a smaller block than the bundle's 4.
        (["draft-m7-h3-c512"], ["draft-m7-h3-c512"]),
        # Of verify, which wants every output.
        (["draft-m7-h7-c512"], ["draft-m7-h7-c512"]),
    ],
)
def test_patterns(tiny_ternary_bundle: Bundle, patterns: list[str], chosen: list[str]) -> None:
    assert [state_name(state) for state in chosen_states(tiny_ternary_bundle, patterns)] == chosen


def test_those_of_sampling(tiny_ternary_bundle: Bundle) -> None:
    found = chosen_states(tiny_ternary_bundle, ["*-logits"])
    assert found == list(ReplayStates.of(tiny_ternary_bundle).all(logits=True))


@pytest.mark.parametrize(
    "pattern", ["verify-m4-h4-c512", "draft-m7-h8-c512", "draft-m1-h1-c77", "x"]
)
def test_a_pattern_that_fits_nothing(tiny_ternary_bundle: Bundle, pattern: str) -> None:
    told = rf"--states '{pattern}' fits no replay state of .*: expected a name such as draft-m1-h1"
    with pytest.raises(UserError, match=told):
        chosen_states(tiny_ternary_bundle, [pattern])
