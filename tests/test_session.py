"""Which policies a bundle serves, and with which numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.forced import ForcedOutcomes, Outcome, force_reject
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    ConfidenceOnly,
    Hybrid,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.errors import UserError
from bitmtp_edge.export.pipeline import export_bundle
from bitmtp_edge.session import Session

from .export.tiny_models import tiny_ternary


@pytest.fixture(scope="module")
def session(tiny_ternary_bundle: Bundle) -> Iterator[Session]:
    with Session(tiny_ternary_bundle, CpuEngine(tiny_ternary_bundle, threads=1)) as opened:
        yield opened


@pytest.fixture(scope="module")
def nested(tiny_bundle: Bundle) -> Iterator[Session]:
    with Session(tiny_bundle, CpuEngine(tiny_bundle, threads=1)) as opened:
        yield opened


def test_policies_of_a_model_with_masks(session: Session) -> None:
    assert session.policies == ("ar", "confidence", "speculative", "hybrid")
    assert session.policy() == Hybrid(4, 0.9, 2)
    assert session.policy("ar") == AutoRegressive()
    assert session.policy("speculative", block=3) == SpeculativeOnly(3)
    assert session.policy("confidence", tau=0.5) == ConfidenceOnly(4, 0.5)
    assert session.policy(block=4, tau=1.0, min_prefix=4) == Hybrid(4, 1.0, 4)


def test_a_short_block_limits_the_bundles_min_prefix(tmp_path: Path) -> None:
    source = tiny_ternary(tmp_path / "m", block=8)
    bundle = export_bundle(source.path, tmp_path / "b", context=256)
    with Session(bundle, CpuEngine(bundle, threads=1)) as opened:
        default = opened.policy()
        assert isinstance(default, Hybrid)
        assert opened.policy(block=2) == Hybrid(2, 0.9, min(2, default.min_prefix))


def test_policies_of_nested_weights(nested: Session) -> None:
    assert nested.policies == ("ar", "nested")
    default = nested.policy()
    assert isinstance(default, NestedSelfSpeculation) and default.gamma == 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"name": "magic"}, "no policy 'magic': choose ar or nested or "),
        ({"name": "nested"}, "policy nested does not fit .* no base plane .* choose ar or conf"),
        ({"block": 5}, "block is 5, but this model was trained for blocks of 4"),
        ({"block": 1}, "block is 1: expected at least 2"),
        ({"tau": 0.0}, "tau is 0.0"),
        ({"tau": 1.5}, "tau is 1.5"),
        ({"min_prefix": 5}, "min_prefix is 5: expected 1 to 4"),
        ({"min_prefix": 3, "block": 2}, "min_prefix is 3: expected 1 to 2"),
        ({"gamma": 2}, "gamma has no effect on policy hybrid: .* take policy nested"),
        ({"name": "ar", "block": 2}, "block has no effect on policy ar: .* confidence or spec"),
        ({"name": "speculative", "tau": 0.5}, "tau has no effect on policy speculative"),
        ({"name": "confidence", "min_prefix": 1}, "min_prefix has no effect on policy confidence"),
    ],
)
def test_what_does_not_fit_is_refused(session: Session, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        session.policy(**asked)
    assert "\n" not in str(refused.value)


def test_blocks_need_masks(nested: Session) -> None:
    for name in ("confidence", "speculative", "hybrid"):
        with pytest.raises(UserError, match=f"policy {name} does not fit .* no mask embeddings"):
            nested.policy(name)
    with pytest.raises(UserError, match="block has no effect on policy nested"):
        nested.policy(block=4)


def test_full_attention_knows_one_block(tmp_path: Path) -> None:
    source = tiny_ternary(tmp_path / "m", block=4, masks=3, attention="full")
    bundle = export_bundle(source.path, tmp_path / "b", context=256)
    with Session(bundle, CpuEngine(bundle, threads=1)) as opened:
        assert opened.policy("speculative", block=4) == SpeculativeOnly(4)
        with pytest.raises(UserError, match="full attention in blocks of 4 tokens"):
            opened.policy("speculative", block=3)
        _same_as_ar(opened, [SpeculativeOnly(4), force_reject(Hybrid(4, 0.9, 2))], 40)


def _same_as_ar(session: Session, policies: list[Policy], tokens: int) -> None:
    prompt = list(range(5, 40))
    limit = len(prompt) + tokens
    expected: list[int] = []
    for policy in [AutoRegressive(), *policies]:
        decoder = session.decoder(policy)
        decoder.prefill(prompt)
        list(decoder.iterations(limit))
        expected = expected or decoder.prefix.tokens
        assert decoder.prefix.tokens == expected, policy


def test_lossless_policies_on_the_cpu(session: Session) -> None:
    """Across a growing segment, too."""
    policies = [SpeculativeOnly(2), SpeculativeOnly(3), SpeculativeOnly(4)]
    forced = [force_reject(ConfidenceOnly(4, 0.5)), force_reject(Hybrid(3, 0.9, 2))]
    _same_as_ar(session, [*policies, *forced], 60)
    _same_as_ar(session, [SpeculativeOnly(4)], 500)


def test_rows_of_unverified_drafts_are_those_of_their_tokens(session: Session) -> None:
    """Whatever was committed how, AR goes on as it would from a prompt of these tokens."""
    outcomes = (
        Outcome(3, 0, False),
        Outcome(4, 0, False),
        Outcome(0, 2, True),
        Outcome(1, 0, False),
    )
    policy = ForcedOutcomes(Hybrid(4, 0.9, 2), outcomes)
    decoder = session.decoder(policy)
    decoder.prefill([7, 8, 9])
    list(decoder.iterations(60))
    tokens = list(decoder.prefix.tokens)
    decoder.policy = AutoRegressive()
    list(decoder.iterations(90))
    fresh = session.decoder(AutoRegressive())
    fresh.prefill(tokens)
    list(fresh.iterations(90))
    assert decoder.prefix.tokens == fresh.prefix.tokens
    assert len(set(tokens)) > 5


def test_steps_have_the_outputs_of_the_block_in_use(session: Session) -> None:
    assert session.decoder(session.policy(block=2)).states.draft_outputs == 2
    assert session.decoder().states.draft_outputs == session.states.draft_outputs == 4
    assert session.states.draft_rows_final and session.states.mask_embeddings == 1
