"""The verify window that is made on the device, before the host has read its drafts."""

from __future__ import annotations

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import Hybrid, Policy, SpeculativeOnly
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.sampling import SamplingParams
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import DraftedWindow, ReplayState, StagedStep
from bitmtp_edge.engines.cuda import CudaEngine

from .cuda_steps import HISTORY, TOKENS, Open, bits, decode
from .steps import play


@pytest.mark.parametrize("prefix", [1, 3, 30])
@pytest.mark.parametrize("spare", [0, 3])
@pytest.mark.parametrize("count", [0, 1, 6])
def test_a_staged_step_is_the_plain_one(
    engine: CudaEngine, prefix: int, spare: int, count: int
) -> None:
    """Also where the last step read KV4, and where the staged state was never captured."""
    play(engine, TOKENS[:HISTORY])
    history = HISTORY - prefix if prefix < HISTORY else 0
    known = TOKENS[history : history + prefix]
    width, heads = prefix + count + spare, min(3, prefix + count)
    state = ReplayState(width, heads, engine.segment, "verify")
    draft = ReplayState(6, 6, engine.segment, "draft")
    window = causal_window(TOKENS[: HISTORY + 6], HISTORY, [], 6, 6, 6, HISTORY)
    got = []
    for _ in range(3):
        drafts = engine.start(draft, window)
        staged = engine.stage(state, DraftedWindow(known, history, drafts, count, heads))
        assert staged is not None
        following = drafts.token_ids[:count, 0].tolist()
        got.append(staged.replay())
    tokens = TOKENS[: history + prefix]
    plain = causal_window(tokens, history, following, width, heads, heads)
    want = bits(engine.replay(state, plain))
    assert [bits(output) for output in got] == [want] * 3


def test_a_longer_prefix_is_left_to_the_host(engine: CudaEngine) -> None:
    drafts = engine.start(
        ReplayState(1, 1, engine.segment, "draft"), causal_window(TOKENS[:1], 0, [], 1, 1, 1)
    )
    state = ReplayState(66, 1, engine.segment, "verify")
    assert engine.stage(state, DraftedWindow(TOKENS[:65], 0, drafts, 1, 1)) is None


def test_what_cannot_be_staged(engine: CudaEngine) -> None:
    state = ReplayState(3, 2, engine.segment, "verify")
    window = causal_window(TOKENS[:3], 0, [], 3, 2, 2)
    drafts = engine.start(state, window)
    for count, heads, prefix in ((3, 1, 1), (2, 1, 2), (1, 3, 1), (-1, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match=r"drafts|outputs"):
            engine.stage(state, DraftedWindow(TOKENS[:prefix], 0, drafts, count, heads))
    following = DraftedWindow(TOKENS[:1], 0, drafts, 1, 2)
    staged = engine.stage(state, following)
    assert staged is not None
    engine.replay(state, window)
    with pytest.raises(ValueError, match="another step has begun"):
        staged.replay()
    with pytest.raises(ValueError, match="the last step"):
        engine.stage(state, following)


def unstaged(engine: CudaEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the steps that were staged; hides staging from the loop after the first call."""
    staged = [0]
    stage = engine.stage

    def counted(state: ReplayState, window: DraftedWindow) -> StagedStep | None:
        found = stage(state, window)
        staged[0] += found is not None
        return found

    monkeypatch.setattr(engine, "stage", counted)
    return staged


@pytest.mark.parametrize("policy", [SpeculativeOnly(4), Hybrid(4, 0.01, 2), Hybrid(4, 0.5, 4)])
def test_decoding_stages_and_commits_the_same(
    tiny_ternary_bundle: Bundle, opened: Open, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tiny_ternary_bundle) as engine:
        with monkeypatch.context() as plain:
            plain.setattr(engine, "stage", lambda *arguments: None)
            want = decode(engine, tiny_ternary_bundle, policy, 50)
        staged = unstaged(engine, monkeypatch)
        assert decode(engine, tiny_ternary_bundle, policy, 50) == want
        assert staged[0] > 0


def test_sampling_is_not_staged(
    tiny_ternary_bundle: Bundle, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tiny_ternary_bundle) as engine:
        staged = unstaged(engine, monkeypatch)
        decoder = Decoder(
            engine,
            ReplayStates.of(tiny_ternary_bundle),
            SpeculativeOnly(4),
            sampling=SamplingParams(temperature=1.0, seed=3),
        )
        decoder.prefill(TOKENS[:5])
        assert sum(len(each.tokens) for each in decoder.iterations(30)) == 25
        assert staged == [0]
