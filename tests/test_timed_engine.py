"""Steps are timed where they are taken, and the pipeline of the engine stays as it is."""

from __future__ import annotations

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    Hybrid,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import PendingOutput, ReplayState
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.engines.cuda import CudaEngine
from bitmtp_edge.timed_engine import TimedEngine

from .engines.host_device import HostDevice, HostLibrary
from .engines.steps import step

PROMPT = [5, 9, 14, 3, 7]


class Opened:
    def __init__(self, bundle: Bundle) -> None:
        device = HostDevice()
        self.library = HostLibrary(device)
        self.engine = CudaEngine(bundle, device=device, library=self.library)


def replies(engine: TimedEngine | CudaEngine, bundle: Bundle, policy: Policy) -> list[int]:
    decoder = Decoder(engine, ReplayStates.of(bundle), policy)
    decoder.prefill(PROMPT)
    for _ in decoder.iterations(48):
        pass
    return decoder.prefix.tokens


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (Hybrid(4, 0.5, 2), "tiny_ternary_bundle"),
        (SpeculativeOnly(4), "tiny_ternary_bundle"),
        (NestedSelfSpeculation(3), "tiny_bundle"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_windows_are_staged_as_ever(
    policy: Policy, named: str, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(named)
    plain, watched = Opened(bundle), Opened(bundle)
    timed = TimedEngine(watched.engine)
    assert replies(timed, bundle, policy) == replies(plain.engine, bundle, policy)
    assert watched.library.staged == plain.library.staged > 0
    assert sum(map(len, timed.seconds.values())) == len(timed.replayed)
    assert all(min(times) > 0 for times in timed.seconds.values())
    assert {state.role for state in timed.replayed} == {"draft", "verify"}


def test_a_step_ends_at_the_first_look(tiny_bundle: Bundle) -> None:
    timed = TimedEngine(Opened(tiny_bundle).engine)
    state = ReplayState(5, 5, timed.segment, "verify")
    output = timed.start(state, causal_window(PROMPT, 0, [], 5, 5, 5))
    assert isinstance(output, PendingOutput)
    assert not timed.replayed and not timed.seconds
    assert output.token_ids is output.token_ids
    assert output.probability.size
    assert [len(times) for times in timed.seconds.values()] == [1]


def test_an_engine_that_waits_is_timed_at_once(tiny_bundle: Bundle) -> None:
    with TimedEngine(CpuEngine(tiny_bundle, threads=1)) as timed:
        step(timed, PROMPT, 0, logits=False)
        assert [len(times) for times in timed.seconds.values()] == [1]
        assert timed.memory() == timed.inner.memory()
        assert (timed.threads, timed.device) == (1, None)


def test_a_step_in_vain_is_none(tiny_bundle: Bundle) -> None:
    """An AR reply that stops has begun one more."""
    timed = TimedEngine(Opened(tiny_bundle).engine)
    decoder = Decoder(timed, ReplayStates.of(tiny_bundle), AutoRegressive())
    for _ in range(2):
        decoder.prefill(PROMPT)
        counted, begun = decoder.steps["verify"], len(timed.replayed)
        for _ in zip(range(7), decoder.iterations(48), strict=False):
            pass
        assert len(timed.replayed) - begun == decoder.steps["verify"] - counted == 7
