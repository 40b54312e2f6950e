"""Rounds: when they end, and that what is measured of a prompt is decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.policies import AutoRegressive, SpeculativeOnly
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.errors import UserError
from bitmtp_edge.power.metering import Metering
from bitmtp_edge.profiling import sampling
from bitmtp_edge.profiling.sampling import Round, Settings, measure, warm_up
from bitmtp_edge.session import Session

from ..power.fake_metering import FakeMetering

NO_METER = Metering(None, "none")
PROMPTS = [[3, 4, 5, 6, 7], [8, 9, 10]]


@pytest.fixture(scope="module")
def session(tiny_ternary_bundle: Bundle) -> Iterator[Session]:
    with Session(tiny_ternary_bundle, CpuEngine(tiny_ternary_bundle, threads=1)) as opened:
        yield opened


def scripted(rates: list[float]) -> Callable[..., Round]:
    given = iter(rates)
    return lambda *rest: Round(tokens=100, decode_s=100 / next(given), iterations=100)


@pytest.mark.parametrize(
    ("rates", "rounds", "tight"),
    [
        ([100, 100.1, 100.2, 100.1], 3, True),
        ([100, 110, 105, 104, 105, 105, 105], 5, False),  # the limit
        ([104, 100, 102, 102, 102, 102], 4, True),
    ],
)
def test_rounds_end_when_their_mean_is_tight(
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    rates: list[float],
    rounds: int,
    tight: bool,
) -> None:
    monkeypatch.setattr(sampling, "_round", scripted(rates))
    settings = Settings(8, within=0.03, max_rounds=5, min_seconds=0)
    done, _ = measure(session, AutoRegressive(), PROMPTS, settings, NO_METER)
    assert (len(done.rounds), done.tight) == (rounds, tight)
    assert done.tokens_per_s.values == pytest.approx(rates[:rounds])


def test_joules_have_to_be_tight_too(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_round", scripted([100] * 9))
    metering = FakeMetering()
    powers = iter([2, 2.4, 2.2, 2.2, 2.2, 2.2, 2.2, 2.2])

    def next_power(done: sampling.Rounds) -> None:
        metering.watts = next(powers)

    settings = Settings(8, within=0.09, max_rounds=6, min_seconds=0)
    metering.watts = next(powers)
    done, _ = measure(session, AutoRegressive(), PROMPTS, settings, metering, next_power)
    assert len(done.rounds) == 5 and done.tight
    assert done.watts is not None
    assert done.watts.values == pytest.approx((2, 2.4, 2.2, 2.2, 2.2))


def test_joules_of_some_rounds_say_of_how_many() -> None:
    done = sampling.Rounds(Settings(8, within=0.1, max_rounds=5, min_seconds=0))
    for joules in (20.0, 20.0, None):
        why = None if joules else "it has come off"
        done.rounds.append(Round(100, 1.0, 100, measured_s=1.0, joules=joules, reason=why))
    assert done.reason == "joules are of 2 of 3 rounds: it has come off"
    assert done.joules_per_token is not None and len(done.joules_per_token.values) == 2
    done.rounds.pop()
    assert done.reason is None
    done.rounds = [Round(100, 1.0, 100, reason="off")]
    assert done.reason == "off"


def test_a_prompt_is_read_once_and_decoded_for_so_long(session: Session) -> None:
    metering = FakeMetering()
    replies: list[tuple[int, int]] = []
    reply = session.reply

    def counted(*rest: Any, **more: Any) -> Any:
        found = reply(*rest, **more)
        replies.append((found.prompt_tokens, found.reused_tokens))
        return found

    session.reply = counted  # type: ignore[method-assign]
    try:
        settings = Settings(8, within=1.0, max_rounds=3, min_seconds=0.05)
        done, trace = measure(session, SpeculativeOnly(4), PROMPTS, settings, metering)
    finally:
        del session.reply  # type: ignore[method-assign]
    first, *again = (reused for prompt, reused in replies if prompt == 5)
    assert first == 0 and again.count(0) == len(done.rounds) - 1  # once more each round
    assert len(again) > 10 and set(again) == {0, 4}  # all rows but the last token's are there
    tokens = done.rounds[0].tokens
    assert metering.calls[:5] == ["begin", "decode", "prefill", "decode", f"end {tokens}"]
    assert done.rounds[0].joules == pytest.approx(0.2 * tokens)
    shown = trace.trace()
    assert shown is not None and len(shown.stretches) == 4


def test_a_fault_leaves_no_window(session: Session) -> None:
    metering = FakeMetering()
    settings = Settings(8, within=1.0, max_rounds=3, min_seconds=0)
    too_long = [[3] * 10_000]
    with pytest.raises(UserError):
        measure(session, AutoRegressive(), too_long, settings, metering)
    assert metering.calls == ["begin", "abandon"]


def test_an_interrupt_ends_it(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = SimpleNamespace(finish_reason="interrupted")
    monkeypatch.setattr(Session, "reply", lambda *rest, **more: interrupted)
    with pytest.raises(KeyboardInterrupt):
        warm_up(session, AutoRegressive(), PROMPTS, 8)


def test_every_prompt_warms_up(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "WARM_UP_S", 0.0)
    seen: list[int] = []
    reply = Session.reply

    def noted(self: Session, decoder: Any, ids: list[int], *rest: Any) -> Any:
        seen.append(len(ids))
        return reply(self, decoder, ids, *rest)

    monkeypatch.setattr(Session, "reply", noted)
    warm_up(session, AutoRegressive(), PROMPTS, 4)
    assert seen == [5, 3]
