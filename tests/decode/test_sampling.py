"""Speculative sampling has exactly the distribution of autoregressive sampling."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import (
    AutoRegressive,
    NestedSelfSpeculation,
    Policy,
    SpeculativeOnly,
)
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.sampling import (
    Distribution,
    Drafts,
    Sampling,
    SamplingParams,
    distribution,
    residual,
    token_choice,
)
from bitmtp_edge.engines.base import StepOutput
from bitmtp_edge.errors import UserError

from .fake_engines import MarkovEngine

V = 4
Table = NDArray[np.float32]


def logits_of(probabilities: NDArray[np.float64]) -> Table:
    with np.errstate(divide="ignore"):
        return np.log(probabilities).astype(np.float32)


def deviation(counts: NDArray[np.float64], probabilities: NDArray[np.float64]) -> float:
    """Chi-square of ``counts`` in standard deviations (Wilson and Hilferty); rare cells together.

    A count where the probability is 0 is infinitely unlikely.
    """
    expected = probabilities * counts.sum()
    if counts[expected == 0].any():
        return float("inf")
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    freedom = expected.size - 1
    if freedom == 0:
        return 0.0
    chi = float(((observed - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    return float(((chi / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)


def sharpened(draw: np.random.Generator, power: float) -> Table:
    return logits_of(draw.dirichlet(np.full(V, power), size=V))


def random_pair() -> tuple[Table, Table]:
    draw = np.random.default_rng(1)
    return sharpened(draw, 1.0), sharpened(draw, 0.5)


def equal_pair() -> tuple[Table, Table]:
    table = sharpened(np.random.default_rng(2), 1.0)
    return table, table


def disjoint_pair() -> tuple[Table, Table]:
    low = np.tile([0.3, 0.7, 0.0, 0.0], (V, 1))
    return logits_of(low), logits_of(low[:, ::-1])


def overlapping_pair() -> tuple[Table, Table]:
    target = np.tile([0.5, 0.25, 0.25, 0.0], (V, 1))
    return logits_of(target), logits_of(np.tile([0.0, 0.25, 0.5, 0.25], (V, 1)))


def tied_pair() -> tuple[Table, Table]:
    return logits_of(np.full((V, V), 0.25)), logits_of(np.tile([0.4, 0.4, 0.1, 0.1], (V, 1)))


def counts_of_replies(
    policy: Policy, pair: tuple[Table, Table], params: SamplingParams, length: int, rounds: int
) -> NDArray[np.float64]:
    drafts = policy.max_drafts
    states = ReplayStates(
        (16,), tuple(range(1, 2 * drafts + 1)), (1, drafts + 1), 4, 16, mask_embeddings=drafts + 1
    )
    decoder = Decoder(MarkovEngine(states, *pair), states, policy, sampling=params)
    decoder.prefill([0])
    counts = np.zeros(V**length)
    for _ in range(rounds):
        tokens = [token for step in decoder.iterations(1 + length) for token in step.tokens]
        counts[int(np.ravel_multi_index(tokens, (V,) * length))] += 1
        decoder.truncate(1)  # without a restart, so that rounds are independent
    return counts


def chances_of_replies(table: Table, params: SamplingParams, length: int) -> NDArray[np.float64]:
    """What autoregressive sampling gives: the product of the filtered rows."""
    steps = np.zeros((V, V))
    for token in range(V):
        row = distribution(table[token], params)
        steps[token, row.ids] = row.weights
    chances = np.zeros(V**length)
    for index in range(V**length):
        tokens = [0, *(int(part) for part in np.unravel_index(index, (V,) * length))]
        chances[index] = np.prod([steps[a, b] for a, b in pairwise(tokens)])
    return chances


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(1.0, seed=11),
        SamplingParams(0.6, seed=12),
        SamplingParams(1.3, top_k=2, seed=13),
        SamplingParams(1.0, top_p=0.7, seed=14),
        SamplingParams(0.9, top_k=3, top_p=0.8, seed=15),
    ],
    ids=lambda params: f"t{params.temperature}-k{params.top_k}-p{params.top_p}",
)
@pytest.mark.parametrize(
    "pair", [random_pair, equal_pair, disjoint_pair, overlapping_pair, tied_pair]
)
def test_speculative_sampling_is_exact(
    pair: Callable[[], tuple[Table, Table]], params: SamplingParams
) -> None:
    """Joint distribution of three tokens, in iterations of one to three of them."""
    tables = pair()
    counts = counts_of_replies(NestedSelfSpeculation(2), tables, params, 3, 600)
    assert deviation(counts, chances_of_replies(tables[0], params, 3)) < 4


@pytest.mark.parametrize("pair", [random_pair, disjoint_pair, overlapping_pair])
def test_blocks_of_drafts_drawn_each_by_itself_are_exact(
    pair: Callable[[], tuple[Table, Table]],
) -> None:
    """The fake model's masks are its last tokens' rows: distributions that no draft changes."""
    tables, params = pair(), SamplingParams(0.8, top_k=3, seed=21)
    counts = counts_of_replies(SpeculativeOnly(3), tables, params, 4, 1200)
    assert deviation(counts, chances_of_replies(tables[0], params, 4)) < 4


def test_autoregressive_sampling_has_the_same_distribution() -> None:
    tables, params = random_pair(), SamplingParams(1.0, seed=5)
    counts = counts_of_replies(AutoRegressive(), tables, params, 2, 1000)
    assert deviation(counts, chances_of_replies(tables[0], params, 2)) < 4


def test_the_deviation_would_notice_the_drafts_own_distribution() -> None:
    tables, params = random_pair(), SamplingParams(1.0, seed=5)
    counts = counts_of_replies(NestedSelfSpeculation(2), tables, params, 3, 600)
    assert deviation(counts, chances_of_replies(tables[1], params, 3)) > 10


def test_one_judgement_many_times() -> None:
    """First token after a draft from q: p, to within what so many draws allow."""
    p, q = np.array([0.05, 0.1, 0.1, 0.1, 0.1, 0.55]), np.array([0.3, 0.2, 0.2, 0.15, 0.15, 0.0])
    output = StepOutput(np.zeros((2, 1), np.int32), np.ones((2, 1), np.float32), None)
    target = StepOutput(output.token_ids, output.probability, logits_of(np.stack([p, p])))
    source = StepOutput(output.token_ids, output.probability, logits_of(q[None]))
    choice = Sampling(SamplingParams(1.0, seed=4))
    counts = np.zeros(6)
    accepted = 0
    rounds = 8000
    for _ in range(rounds):
        drafts = Drafts()
        choice.draw(source, 1, drafts)
        length, following = choice.judge(target, drafts)
        counts[drafts.tokens[0] if length else following] += 1
        accepted += length
    assert deviation(counts, p) < 4
    chance = float(np.minimum(p, q).sum())
    assert abs(accepted / rounds - chance) < 4 * (chance * (1 - chance) / rounds) ** 0.5


def replies(policy: Policy, seed: int | None) -> list[list[int]]:
    states = ReplayStates((64,), (1,), (1, policy.max_drafts + 1), 4, 64)
    params = SamplingParams(1.0, seed=seed)
    decoder = Decoder(MarkovEngine(states, *random_pair()), states, policy, sampling=params)
    found = []
    for _ in range(2):
        decoder.prefill([0])
        found.append([token for step in decoder.iterations(40) for token in step.tokens])
    return found


@pytest.mark.parametrize("policy", [AutoRegressive(), NestedSelfSpeculation(3)])
def test_a_seed_reproduces_a_reply(policy: Policy) -> None:
    first, second = replies(policy, 7)
    assert first == second == replies(policy, 7)[0]
    assert first != replies(policy, 8)[0]
    fresh, other = replies(policy, None)
    assert fresh != other


def test_temperature_zero_is_greedy_and_asks_for_no_logits() -> None:
    assert not token_choice(SamplingParams()).logits
    assert not token_choice(None).logits
    assert token_choice(SamplingParams(0.1)).logits


def shown(logits: list[float], params: SamplingParams) -> dict[int, float]:
    found = distribution(np.array(logits, np.float32), params)
    return dict(zip(found.ids.tolist(), found.weights.round(6).tolist(), strict=True))


def test_filters() -> None:
    logits = np.log([0.1, 0.4, 0.2, 0.3]).tolist()
    assert shown(logits, SamplingParams(1.0)) == {0: 0.1, 1: 0.4, 2: 0.2, 3: 0.3}
    assert shown(logits, SamplingParams(1.0, top_k=1)) == {1: 1.0}
    assert shown(logits, SamplingParams(1.0, top_k=9)) == {0: 0.1, 1: 0.4, 2: 0.2, 3: 0.3}
    assert shown(logits, SamplingParams(1.0, top_p=0.35)) == {1: 1.0}
    assert shown(logits, SamplingParams(1.0, top_p=0.65)) == {1: 0.571429, 3: 0.428571}
    # Top-p sees what top-k left: 0.4 of 0.7 is more than 0.55.
    assert shown(logits, SamplingParams(1.0, top_k=2, top_p=0.55)) == {1: 1.0}
    # The square of each probability, normalised.
    assert shown(logits, SamplingParams(0.5)) == {0: 0.033333, 1: 0.533333, 2: 0.133333, 3: 0.3}


def test_among_equals_the_lowest_ids_stay() -> None:
    assert shown([1, 2, 1, 1, 1], SamplingParams(1.0, top_k=3)).keys() == {0, 1, 2}
    assert shown([0, 0, 0, 0], SamplingParams(1.0, top_p=0.5)).keys() == {0, 1}
    assert shown([0, 0, 0, 0], SamplingParams(1.0, top_k=3, top_p=0.3)).keys() == {0}


def test_extreme_logits() -> None:
    assert shown([-1e30, 3e38, float("-inf")], SamplingParams(1e-3)) == {1: 1.0}
    assert shown([5, float("-inf"), 5], SamplingParams(1.0, top_p=0.999)) == {0: 0.5, 2: 0.5}


def test_a_top_p_filter_equals_one_by_full_sort() -> None:
    draw = np.random.default_rng(6)
    for _ in range(200):
        logits = draw.normal(0, draw.uniform(0.1, 6), 300).astype(np.float32)
        top_p = float(draw.uniform(0.05, 0.999))
        weights = np.exp(logits.astype(np.float64) - logits.max())
        weights /= weights.sum()
        order = np.argsort(-weights, kind="stable")
        count = int(np.searchsorted(np.cumsum(weights[order]), top_p)) + 1
        found = distribution(logits, SamplingParams(1.0, top_p=top_p))
        assert found.ids.tolist() == sorted(order[:count].tolist())


def test_residual() -> None:
    p = Distribution(np.array([1, 3, 5]), np.array([0.5, 0.25, 0.25]))
    q = Distribution(np.array([3, 5, 8]), np.array([0.125, 0.5, 0.375]))
    rest = residual(p, q)
    assert rest.ids.tolist() == [1, 3]
    assert rest.weights.tolist() == [0.8, 0.2]
    assert residual(p, p) is p


def test_draws_cover_the_whole_interval() -> None:
    source = Distribution(np.array([2, 4, 7]), np.array([0.25, 0.5, 0.25]))
    last = float(np.nextafter(1, 0))
    picks = [source.draw(uniform) for uniform in (0.0, 0.24, 0.25, 0.74, 0.75, last)]
    assert picks == [2, 2, 4, 4, 7, 7]


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_p": float("nan")},
        {"seed": -1},
    ],
)
def test_values_out_of_range_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(setting))} is .*: expected"):
        SamplingParams(**setting)  # type: ignore[arg-type]
