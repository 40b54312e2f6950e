"""One reply: text, ids, counts, ends, turns and interrupts."""

from __future__ import annotations

import json
import random
import sys
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import tokenizers

import bitmtp_edge.decode
from bitmtp_edge.decode.generate import GenerationResult, generate
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    ConfidenceOnly,
    Hybrid,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.sampling import SamplingParams
from bitmtp_edge.decode.stopping import StopRules
from bitmtp_edge.errors import UserError
from bitmtp_edge.power.metering import Metering
from bitmtp_edge.power.report import EnergyReport
from bitmtp_edge.text.tokenizer import Tokenizer

from ..power.fake_metering import SHORT, FakeMetering, FakeWindow
from .fake_engines import HashEngine, ScriptedEngine

LETTERS = "abcdefghij"
END = 10
NO_STOP = StopRules()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Ids 0..9 are the letters a..j, 10 is a control token."""
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={c: i for i, c in enumerate(LETTERS)}, merges=[])
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend.to_str())


def hashed(
    policy: Policy, context: int = 64, noise: int = 4, **settings: Any
) -> tuple[Decoder, HashEngine]:
    drafts = policy.max_drafts
    states = ReplayStates(
        (8, 16, 64),
        tuple(range(1, max(2, 2 * drafts))),
        (1, drafts + 1, 2 * drafts + 1),
        4,
        context,
        draft_rows_final=not isinstance(policy, NestedSelfSpeculation),
        mask_embeddings=1,
    )
    engine = HashEngine(states, noise=noise)
    return Decoder(engine, states, policy, **settings), engine


def scripted(gamma: int, accepts: list[int]) -> Decoder:
    """The reply to [0] is h e b i f c j g d a, over and over."""
    states = ReplayStates((256,), (1,), (1, gamma + 1), 8, 256)
    return Decoder(ScriptedEngine(states, accepts), states, NestedSelfSpeculation(gamma))


def test_a_reply_to_the_length_limit(tokenizer: Tokenizer) -> None:
    decoder = scripted(4, [4, 2, 0])
    pieces: list[str] = []
    result = generate(decoder, tokenizer, [0], 10, NO_STOP, pieces.append)
    assert pieces == ["hebif", "cjg", "d", "a"]
    assert result.text == "hebifcjgda"
    assert result.token_ids == [LETTERS.index(letter) for letter in result.text]
    assert result.finish_reason == "length"
    assert (result.prompt_tokens, result.generated_tokens) == (1, 10)
    assert result.accepted_lengths == [4, 2, 0, 0]
    assert (result.iterations, result.tokens_per_iteration) == (4, 2.5)
    assert (result.draft_steps, result.verify_steps) == (4 + 4 + 1, 4)
    assert result.drafted_tokens == 4 + 4 + 1
    assert result.tokens_per_s == pytest.approx(10 / result.decode_s)
    assert result.energy is None
    assert result.energy_reason
    assert (result.engine, result.policy) == ("scripted", "nested")
    assert result.policy_settings == {"gamma": 4, "kv4_from_segment": None, "recent_n": 0}
    assert json.loads(json.dumps(asdict(result)))["sampling"]["temperature"] == 0.0


def test_the_energy_of_a_reply(tokenizer: Tokenizer) -> None:
    metering = FakeMetering()
    result = generate(scripted(4, [4, 2, 0, 0]), tokenizer, [0], 10, NO_STOP, metering=metering)
    assert metering.calls == ["begin", "decode", "end 10"]
    assert (result.joules_per_token, result.watts) == (pytest.approx(0.2), 2.0)
    assert (result.no_joules, result.energy_reason) == (None, None)
    assert result.energy is not None
    assert result.energy["prefill"]["joules"] == pytest.approx(1.0)
    json.dumps(asdict(result), allow_nan=False)


def test_a_meter_that_gives_no_figure(tokenizer: Tokenizer) -> None:
    result = generate(scripted(4, [2]), tokenizer, [0], 3, NO_STOP, metering=FakeMetering())
    assert result.energy is not None and result.energy["joules"] is None
    assert (result.joules_per_token, result.no_joules) == (None, SHORT)


def test_no_meter_and_why(tokenizer: Tokenizer) -> None:
    metering = Metering(None, "no power source works here")
    result = generate(scripted(4, [2]), tokenizer, [0], 3, NO_STOP, metering=metering)
    assert (result.energy, result.no_joules) == (None, "no power source works here")


def test_an_interrupt_while_the_meter_waits_leaves_no_window(tokenizer: Tokenizer) -> None:
    class Interrupted(FakeWindow):
        def end(self, tokens: int) -> EnergyReport:
            raise KeyboardInterrupt

    metering = FakeMetering()
    metering.begin = lambda: Interrupted(metering)  # type: ignore[method-assign]
    decoder = scripted(4, [2])
    with pytest.raises(KeyboardInterrupt):
        generate(decoder, tokenizer, [0], 3, NO_STOP, metering=metering)
    assert metering.calls == ["decode", "abandon"]
    assert len(decoder.prefix.tokens) == 1 + 3  # the conversation goes on from there


def test_a_prompt_that_does_not_fit_leaves_no_window(tokenizer: Tokenizer) -> None:
    metering = FakeMetering()
    decoder, _ = hashed(AutoRegressive(), context=8)
    with pytest.raises(UserError):
        generate(decoder, tokenizer, [0] * 9, 3, NO_STOP, metering=metering)
    assert metering.calls == ["begin", "abandon"]


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (StopRules(frozenset({LETTERS.index("i")})), "heb"),  # inside the first block
        (StopRules(frozenset({LETTERS.index("h")})), ""),  # its first token
        (StopRules(frozenset({LETTERS.index("f")})), "hebi"),  # the verifier's own token
        (StopRules(stop_strings=("bi",)), "he"),
        (StopRules(stop_strings=("ifc",)), "heb"),  # across two blocks
    ],
)
def test_a_stop_inside_a_block_cuts_text_ids_and_state(
    tokenizer: Tokenizer, rules: StopRules, text: str
) -> None:
    decoder = scripted(4, [4, 4, 4])
    pieces: list[str] = []
    result = generate(decoder, tokenizer, [0], 40, rules, pieces.append)
    assert result.finish_reason == "stop"
    assert result.text == "".join(pieces) == text
    assert result.generated_tokens == len(result.token_ids) == len(text)
    assert decoder.prefix.tokens == [0, *result.token_ids]
    assert decoder.prefix.verified == len(text)


def test_a_drafted_stop_token_counts_only_once_accepted(tokenizer: Tokenizer) -> None:
    # A wrong draft is the right token's successor: "f" at the place of "e".
    rules = StopRules(frozenset({LETTERS.index("f")}))
    result = generate(scripted(4, [1, 0, 4]), tokenizer, [0], 40, rules)
    assert result.text == "hebi"
    assert result.accepted_lengths == [1, 0, 4]


def test_a_stop_beats_the_length_limit(tokenizer: Tokenizer) -> None:
    rules = StopRules(frozenset({LETTERS.index("f")}))
    result = generate(scripted(4, [4]), tokenizer, [0], 5, rules)
    assert (result.text, result.finish_reason) == ("hebi", "stop")


@pytest.mark.parametrize("policy", [AutoRegressive(), NestedSelfSpeculation(4), SpeculativeOnly(4)])
def test_limit_edges(tokenizer: Tokenizer, policy: Policy) -> None:
    for prompt, asked, count, reason in (
        ([3], 1, 1, "length"),
        ([3], 11, 11, "length"),
        ([3], 12, 11, "context"),
        ([3] * 10, 5, 2, "context"),
        ([3] * 10, 2, 2, "length"),
        ([3] * 11, 9, 1, "context"),
    ):
        decoder, engine = hashed(policy, context=12)
        result = generate(decoder, tokenizer, prompt, asked, NO_STOP)
        assert result.token_ids == engine.reply(prompt, count)
        assert result.finish_reason == reason
        assert len(decoder.prefix.tokens) == len(prompt) + count


def test_bad_requests_are_refused_before_any_step(tokenizer: Tokenizer) -> None:
    decoder, engine = hashed(AutoRegressive(), context=12)
    with pytest.raises(UserError, match="the prompt has 12 tokens"):
        generate(decoder, tokenizer, [3] * 12, 5, NO_STOP)
    with pytest.raises(UserError, match="max_new_tokens is 0"):
        generate(decoder, tokenizer, [3], 0, NO_STOP)
    assert not engine.replayed


def test_turns_resume_from_verified_rows(tokenizer: Tokenizer) -> None:
    decoder, engine = hashed(NestedSelfSpeculation(3))
    prompt = [1, 2, 3, 4, 5]
    for turn in range(3):
        result = generate(decoder, tokenizer, prompt, 7, StopRules(frozenset({2})))
        expected = engine.reply(prompt, 7)
        assert result.token_ids == expected[: len(result.token_ids)]
        assert result.reused_tokens >= (len(prompt) - 5 if turn else 0)
        prompt = [*prompt, *result.token_ids, END, 6, 7, 8]


def test_sampled_replies_reproduce(tokenizer: Tokenizer) -> None:
    from .fake_engines import MarkovEngine
    from .test_sampling import random_pair

    states = ReplayStates((64,), (1,), (1, 4), 8, 64)
    params = SamplingParams(0.8, top_k=3, seed=5)
    engine = MarkovEngine(states, *random_pair())
    decoder = Decoder(engine, states, NestedSelfSpeculation(3), sampling=params)
    first, second = (generate(decoder, tokenizer, [0], 30, NO_STOP) for _ in range(2))
    assert first.token_ids == second.token_ids
    assert first.sampling["seed"] == 5


def test_a_seed_that_was_drawn_is_told_and_repeats_the_reply(tokenizer: Tokenizer) -> None:
    from .fake_engines import MarkovEngine
    from .test_sampling import random_pair

    states = ReplayStates((64,), (1,), (1, 4), 8, 64)

    def sampled(seed: int | None) -> list[GenerationResult]:
        params = SamplingParams(0.8, seed=seed)
        engine = MarkovEngine(states, *random_pair())
        decoder = Decoder(engine, states, NestedSelfSpeculation(3), sampling=params)
        return [generate(decoder, tokenizer, [0], 30, NO_STOP) for _ in range(2)]

    first, second = sampled(None)
    assert first.sampling["seed"] != second.sampling["seed"]
    for reply in (first, second):
        again, _ = sampled(reply.sampling["seed"])
        assert again.token_ids == reply.token_ids


def test_random_turns_equal_autoregressive_ones(tokenizer: Tokenizer) -> None:
    for seed in range(150):
        draw = random.Random(seed)
        drafting = draw.choice((NestedSelfSpeculation(draw.randint(1, 8)), SpeculativeOnly(5)))
        policies = (AutoRegressive(), drafting)
        decoders = [hashed(policy)[0] for policy in policies]
        prompt: list[int] = [draw.randrange(END)]
        for _ in range(3):
            rules = StopRules(
                frozenset({END}),
                tuple("".join(draw.choices(LETTERS, k=draw.randint(1, 2))) for _ in range(2)),
            )
            asked = draw.randint(1, 20)
            pieces: list[str] = []
            plain = generate(decoders[0], tokenizer, prompt, asked, rules)
            nested = generate(decoders[1], tokenizer, prompt, asked, rules, pieces.append)
            assert (plain.token_ids, plain.text, plain.finish_reason) == (
                nested.token_ids,
                nested.text,
                nested.finish_reason,
            )
            assert "".join(pieces) == nested.text == tokenizer.decode(nested.token_ids)
            prompt = [*prompt, *nested.token_ids, draw.randrange(END)][-60:]


class InterruptAt:
    """Raises KeyboardInterrupt at the n-th line that runs in the decoding package.

    That is what Ctrl-C does, save that it may also come between the parts of a line.
    """

    def __init__(self, line: int) -> None:
        self.left = line

    def __enter__(self) -> InterruptAt:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if self.left > 0 and _is_ours(frame.f_code.co_filename) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._line


@cache
def _is_ours(path: str) -> bool:
    folder = Path(bitmtp_edge.decode.__file__).resolve().parent
    return Path(path).resolve().parent == folder or path == HashEngine.promote.__code__.co_filename


@pytest.mark.parametrize(
    "policy",
    [NestedSelfSpeculation(3), SpeculativeOnly(3), ConfidenceOnly(3, 0.01)],
    ids=lambda policy: policy.name,
)
def test_an_interrupt_anywhere_leaves_a_sequence_that_goes_on(
    tokenizer: Tokenizer, policy: Policy
) -> None:
    # Drafts that are always right make the policy that verifies none of them give AR's tokens too.
    noise = 0 if policy.name == "confidence" else 2
    prompt, again = [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 8, 9, 1, 2]
    line, interrupted = 0, 0
    while True:
        line += 7
        decoder, engine = hashed(policy, noise=noise)
        generate(decoder, tokenizer, prompt[:4], 4, NO_STOP)
        expected = engine.reply(prompt, 10)
        pieces: list[str] = []
        result: GenerationResult | None = None
        # It reaches us where it came before the first step or after the last.
        with InterruptAt(line) as trace, suppress(KeyboardInterrupt):
            result = generate(decoder, tokenizer, prompt, 10, NO_STOP, pieces.append)
        if result is not None and result.finish_reason == "interrupted":
            interrupted += 1
            assert result.token_ids == expected[: len(result.token_ids)]
            assert result.text.startswith("".join(pieces))
        decoder.prefix.check()
        for tokens in (decoder.prefix.tokens or prompt, again):
            resumed = generate(decoder, tokenizer, tokens, 8, NO_STOP)
            assert resumed.token_ids == engine.reply(tokens, 8)
        if trace.left > 0:
            break
    assert interrupted > 40


def test_what_a_hybrid_reply_tells_of_its_iterations(tokenizer: Tokenizer) -> None:
    decoder, _ = hashed(Hybrid(4, 0.5, 2), noise=2)
    result = generate(decoder, tokenizer, [1, 2, 3], 40, NO_STOP)
    told = list(
        zip(result.confident_lengths, result.accepted_lengths, result.verified, strict=True)
    )
    assert len(told) == result.iterations
    assert {verified for *_, verified in told} == {True, False}
    for confident, accepted, verified in told[:-2]:  # the last have fewer drafts
        assert verified == (confident < 2)
        assert verified or accepted == confident
    assert sum(a + v for _, a, v in told) >= result.generated_tokens
    assert result.verify_steps == sum(result.verified)
    assert result.policy_settings == {"block": 4, "tau": 0.5, "min_prefix": 2}
    plain = generate(hashed(AutoRegressive())[0], tokenizer, [1, 2, 3], 5, NO_STOP)
    assert (plain.confident_lengths, plain.verified) == ([], [True] * 5)


def test_an_interrupt_keeps_what_was_shown(tokenizer: Tokenizer) -> None:
    decoder = scripted(4, [4, 4, 4, 4])
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if len(shown) == 2:
            raise KeyboardInterrupt

    result = generate(decoder, tokenizer, [0], 40, NO_STOP, show)
    assert result.finish_reason == "interrupted"
    assert result.text == "".join(shown) == "hebifcjgda"
    assert decoder.prefix.tokens == [0, *result.token_ids]
    assert decoder.prefix.verified == 10


def test_an_interrupt_in_prefill_gives_an_empty_reply(tokenizer: Tokenizer) -> None:
    decoder, engine = hashed(AutoRegressive())
    prompt = list(range(10)) * 2

    def stop(done: int, total: int) -> None:
        assert total == 19
        if done >= 8:
            raise KeyboardInterrupt

    result = generate(decoder, tokenizer, prompt, 5, NO_STOP, on_prefill=stop)
    assert (result.text, result.finish_reason, result.iterations) == ("", "interrupted", 0)
    assert (result.tokens_per_s, result.tokens_per_iteration) == (0.0, 0.0)
    assert decoder.prefix.verified == 8
    again = generate(decoder, tokenizer, prompt, 5, NO_STOP)
    assert again.reused_tokens == 8
    assert again.token_ids == engine.reply(prompt, 5)
