"""Windows that are made on the device, also before the host has read their tokens."""

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
from bitmtp_edge.decode.sampling import SamplingParams
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import (
    ReplayState,
    StagedWindow,
)
from bitmtp_edge.engines.cuda import CudaEngine

from .cuda_steps import HISTORY, TOKENS, Open, bits, decode
from .steps import play


@pytest.mark.parametrize("prefix", [0, 1, 3, 30])
@pytest.mark.parametrize("spare", [0, 3])
@pytest.mark.parametrize("count", [0, 1, 6])
def test_a_staged_step_is_the_plain_one(
    engine: CudaEngine, prefix: int, spare: int, count: int
) -> None:
    """Also where the last step read KV4, and where the staged state was never captured."""
    if prefix + count == 0:
        pytest.skip("no window")
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
        staged = engine.stage(state, StagedWindow(known, history, drafts, count, heads))
        assert staged is not None
        following = drafts.token_ids[:count, 0].tolist()
        got.append(staged.start())
    tokens = TOKENS[: history + prefix]
    plain = causal_window(tokens, history, following, width, heads, heads)
    want = bits(engine.replay(state, plain))
    assert [bits(output) for output in got] == [want] * 3


def test_a_longer_prefix_is_left_to_the_host(engine: CudaEngine) -> None:
    drafts = engine.start(
        ReplayState(1, 1, engine.segment, "draft"), causal_window(TOKENS[:1], 0, [], 1, 1, 1)
    )
    state = ReplayState(66, 1, engine.segment, "verify")
    assert engine.stage(state, StagedWindow(TOKENS[:65], 0, drafts, 1, 1)) is None


def test_what_cannot_be_staged(engine: CudaEngine) -> None:
    state = ReplayState(3, 2, engine.segment, "verify")
    window = causal_window(TOKENS[:3], 0, [], 3, 2, 2)
    drafts = engine.start(state, window)
    for count, heads, prefix in ((3, 1, 0), (2, 1, 2), (1, 3, 1), (-1, 1, 2), (1, 0, 1), (0, 1, 0)):
        with pytest.raises(ValueError, match=r"drafts|rows|outputs"):
            engine.stage(state, StagedWindow(TOKENS[:prefix], 0, drafts, count, heads))
    for two_way in (-1, 3):
        with pytest.raises(ValueError, match="no window"):
            engine.stage(state, StagedWindow(TOKENS[:2], 0, None, 0, 1, two_way=two_way))
    following = StagedWindow(TOKENS[:1], 0, drafts, 1, 2)
    staged = engine.stage(state, following)
    assert staged is not None
    engine.replay(state, window)
    with pytest.raises(ValueError, match="another step has begun"):
        staged.start()
    with pytest.raises(ValueError, match="the last step"):
        engine.stage(state, following)


def staged_windows(engine: CudaEngine, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts the windows that are staged from now on: of known tokens, and with drafts."""
    staged = {"known": 0, "drafted": 0}
    make = engine._make

    def counted(state: ReplayState, window: StagedWindow) -> bool:
        made = make(state, window)
        staged["drafted" if window.taken else "known"] += made
        return made

    monkeypatch.setattr(engine, "_make", counted)
    return staged


@pytest.mark.parametrize("two_way", [0, 1, 5, 7])
@pytest.mark.parametrize("heads", [1, 6])
def test_a_window_of_known_tokens(engine: CudaEngine, two_way: int, heads: int) -> None:
    """Made on the device as on the host, whatever step ran last; masks among its tokens, too."""
    play(engine, TOKENS[:HISTORY])
    masked = engine.bundle.model.mask_embeddings > 0
    last = [-1] * two_way if masked else TOKENS[60 : 60 + two_way]
    known = [*TOKENS[HISTORY : HISTORY + 7 - two_way], *last]
    state = ReplayState(9, 6, engine.segment, "draft")
    staged = engine.stage(state, StagedWindow(known, HISTORY, None, 0, heads, 5, two_way))
    assert staged is not None
    got = staged.start()
    window = causal_window(TOKENS[:HISTORY] + known, HISTORY, [], 9, heads, 6, 5, two_way)
    assert bits(got) == bits(engine.replay(state, window))


@pytest.mark.parametrize("kv4", [0, 7, HISTORY])
def test_a_staged_draft_step_is_the_plain_one(engine: CudaEngine, kv4: int) -> None:
    """Of one token, with ``kv4`` rows of history read at KV4."""
    play(engine, TOKENS[:HISTORY])
    state = ReplayState(1, 1, engine.segment, "draft")
    for _ in range(3):
        first = engine.start(state, causal_window(TOKENS[:HISTORY], HISTORY - 1, [], 1, 1, 1))
        staged = engine.stage(state, StagedWindow((), HISTORY, first, 1, 1, kv4))
        assert staged is not None
        got = staged.start()
        token = int(first.token_ids[0, 0])
        plain = causal_window([*TOKENS[:HISTORY], token], HISTORY, [], 1, 1, 1, kv4)
        assert bits(got) == bits(engine.replay(state, plain))


@pytest.mark.parametrize("gamma", [1, 4])
@pytest.mark.parametrize("kv4_from", [None, 1])
def test_nested_drafts_begin_before_their_token_is_read(
    tiny_bundle: Bundle,
    opened: Open,
    gamma: int,
    kv4_from: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same tokens, and of an iteration only the first step waits for one."""
    policy = NestedSelfSpeculation(gamma, kv4_from, recent_n=4)
    with opened(tiny_bundle) as engine:
        with monkeypatch.context() as plain:
            plain.setattr(engine, "_make", lambda *arguments: False)
            want = decode(engine, tiny_bundle, policy, 50)
        staged = staged_windows(engine, monkeypatch)
        decoder = Decoder(engine, ReplayStates.of(tiny_bundle), policy)
        decoder.prefill(TOKENS[:12])
        iterations = list(decoder.iterations(12 + 50))
        assert decoder.prefix.tokens[12:] == want
        assert staged["known"] == len(iterations)
        assert staged["drafted"] == sum(each.drafted for each in iterations)
        assert staged["drafted"] > len(iterations) / 2


@pytest.mark.parametrize("policy", [SpeculativeOnly(4), Hybrid(4, 0.01, 2), Hybrid(4, 0.5, 4)])
def test_decoding_stages_and_commits_the_same(
    tiny_ternary_bundle: Bundle, opened: Open, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tiny_ternary_bundle) as engine:
        with monkeypatch.context() as plain:
            plain.setattr(engine, "_make", lambda *arguments: False)
            want = decode(engine, tiny_ternary_bundle, policy, 50)
        staged = staged_windows(engine, monkeypatch)
        assert decode(engine, tiny_ternary_bundle, policy, 50) == want
        assert min(staged.values()) > 0


def test_sampling_stages_what_it_knows(
    tiny_ternary_bundle: Bundle, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tiny_ternary_bundle) as engine:
        staged = staged_windows(engine, monkeypatch)
        decoder = Decoder(
            engine,
            ReplayStates.of(tiny_ternary_bundle),
            SpeculativeOnly(4),
            sampling=SamplingParams(temperature=1.0, seed=3),
        )
        decoder.prefill(TOKENS[:5])
        assert sum(len(each.tokens) for each in decoder.iterations(30)) == 25
        assert staged["known"] > 0 and staged["drafted"] == 0


def test_ar_runs_one_step_ahead(
    bundle: Bundle, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens as without, in one step a token and never one behind the limit; also where
    the KV buffer grows in between."""
    prompt, ar = TOKENS[:490], AutoRegressive()

    def reply(engine: CudaEngine) -> list[int]:
        decoder = Decoder(engine, ReplayStates.of(bundle), ar)
        decoder.prefill(prompt)
        for _ in decoder.iterations(len(prompt) + 60):
            pass
        assert decoder.steps["verify"] == 60 + 4
        return decoder.prefix.tokens[len(prompt) :]

    with opened(bundle) as engine, monkeypatch.context() as plain:
        plain.setattr(engine, "_make", lambda *arguments: False)
        want = reply(engine)
    with opened(bundle) as engine:
        first = engine.segment
        staged = staged_windows(engine, monkeypatch)
        assert reply(engine) == want
        assert engine.segment > first
        assert staged == {"known": 2, "drafted": 58}  # the first, and the first of a new buffer
        assert decode(engine, bundle, ar, 1) == decode(engine, bundle, ar, 2)[:1]


def test_a_step_ahead_that_nobody_wants(bundle: Bundle, opened: Open) -> None:
    """A reply that stops early, one that is cut, and one that goes on elsewhere."""
    with opened(bundle) as engine:
        decoder = Decoder(engine, ReplayStates.of(bundle), AutoRegressive())

        def reply(prompt: list[int], count: int) -> list[int]:
            decoder.prefill(prompt)
            for _ in zip(range(count), decoder.iterations(len(prompt) + 40), strict=False):
                pass
            return decoder.prefix.tokens[len(prompt) :]

        prompt, other = TOKENS[:12], TOKENS[40:61]
        want, wanted = reply(prompt, 20), reply(other, 9)
        assert reply(prompt, 7) == want[:7]
        decoder.truncate(len(prompt) + 3)
        for _ in decoder.iterations(len(prompt) + 20):
            pass
        assert decoder.prefix.tokens[len(prompt) :] == want
        assert decoder.steps["verify"] > 20
        assert reply(prompt, 5) == want[:5]
        assert reply(other, 9) == wanted


def drafting(bundle: Bundle) -> Policy:
    """One whose tokens are AR's."""
    if bundle.model.mask_embeddings:
        return SpeculativeOnly(4)
    return NestedSelfSpeculation(3, kv4_from_segment=512, recent_n=4)


def test_a_draft_step_ahead_that_nobody_wants(bundle: Bundle, opened: Open) -> None:
    """The same replies, whatever step is under way when one stops, is cut or goes on elsewhere."""
    with opened(bundle) as engine:
        want = [decode(engine, bundle, AutoRegressive(), 40, at) for at in (0, 40)]
        decoder = Decoder(engine, ReplayStates.of(bundle), drafting(bundle))
        for at, stop, cut in ((0, 5, 30), (40, 3, 0), (0, 1, 1), (40, 9, 4), (0, 9, 12)):
            prompt, expected = TOKENS[at : at + 12], want[at // 40]
            decoder.prefill(prompt)
            for _ in zip(range(stop), decoder.iterations(12 + 40), strict=False):
                pass
            begun = dict(decoder.steps)
            decoder.truncate(12 + cut)
            assert begun["draft"] - decoder.steps["draft"] in (0, 1)
            got = decoder.prefix.tokens[12:]
            assert got == expected[: len(got)]
            for _ in decoder.iterations(12 + 40):
                pass
            assert decoder.prefix.tokens[12:] == expected


def test_steps_ahead_in_a_buffer_that_grows(bundle: Bundle, opened: Open) -> None:
    prompt = TOKENS[:490]
    with opened(bundle) as engine:
        replies = []
        for policy in (AutoRegressive(), drafting(bundle)):
            engine.grow(bundle.replay.segments[0], 0)
            decoder = Decoder(engine, ReplayStates.of(bundle), policy)
            decoder.prefill(prompt)
            for _ in decoder.iterations(len(prompt) + 60):
                pass
            assert engine.segment > bundle.replay.segments[0]
            replies.append(decoder.prefix.tokens)
        assert replies[0] == replies[1]


@pytest.mark.parametrize("after", [1, 2, 3, 7, 12])
def test_an_interrupt_between_steps_that_run_ahead(
    bundle: Bundle, opened: Open, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(bundle) as engine:
        want = decode(engine, bundle, AutoRegressive(), 40)
        decoder = Decoder(engine, ReplayStates.of(bundle), drafting(bundle))
        decoder.prefill(TOKENS[:12])
        left, make = after, engine._make

        def interrupted(state: ReplayState, window: StagedWindow) -> bool:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return make(state, window)

        monkeypatch.setattr(engine, "_make", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(decoder.iterations(12 + 40))
        for _ in decoder.iterations(12 + 40):
            pass
        assert decoder.prefix.tokens[12:] == want
