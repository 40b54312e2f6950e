"""Choosing tokens: greedy, or exact speculative sampling.

*Greedy* takes the best token, and accepts a draft that is the verifier's best token.

*Sampling* draws a draft x from q, the draft step's distribution, and accepts it with probability
min(1, p(x) / q(x)), where p is the verify step's. The first rejected draft is replaced by a token
drawn from max(p - q, 0), normalised; if all are accepted, one more token is drawn from p. Every
token then has exactly the distribution p, whatever q is (Leviathan et al. 2023, Chen et al. 2023):
also where the drafts of a block are drawn each by itself, for then the earlier ones leave q alone.
p and q are made from the logits by the same filter.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.engines.base import StepOutput
from bitmtp_edge.errors import SettingError

SEED_BITS = 32  # of a seed drawn here: short enough to type


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn from logits; raises UserError for a value out of range.

    temperature: 0 is greedy, and then nothing else matters. top_k: keep the k most likely tokens; 0
    keeps all. top_p: of these, keep the fewest whose probability reaches top_p. seed: None draws a
    new one for every reply, which the reply's result tells.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise SettingError("temperature", f"is {self.temperature}: expected 0 (greedy) or more")
        if self.top_k < 0:
            raise SettingError("top_k", f"is {self.top_k}: expected 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise SettingError("top_p", f"is {self.top_p}: expected more than 0 and at most 1")
        if self.seed is not None and self.seed < 0:
            raise SettingError("seed", f"is {self.seed}: expected 0 or more")


@dataclass(frozen=True)
class Distribution:
    """A distribution over tokens: ``ids`` int64[n] ascending, ``weights`` fp64[n] above 0.

    Weights add up to 1, but for rounding.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float64]

    def probability(self, token: int) -> float:
        spot = int(np.searchsorted(self.ids, token))
        found = spot < self.ids.size and self.ids[spot] == token
        return float(self.weights[spot]) if found else 0.0

    def draw(self, uniform: float) -> int:
        """The token at ``uniform``, in [0, 1), of the cumulated weights in order of id."""
        cumulated = np.cumsum(self.weights)
        spot = int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right"))
        return int(self.ids[min(spot, self.ids.size - 1)])


def distribution(logits: NDArray[np.float32], params: SamplingParams) -> Distribution:
    """What tokens are drawn from, for ``logits`` fp32[V] and a temperature above 0.

    Temperature first, then top-k, then top-p on what is left; among equals the lowest ids stay.
    """
    ids: NDArray[np.intp] = np.arange(logits.size)
    if 0 < params.top_k < logits.size:
        least = np.partition(logits, -params.top_k)[-params.top_k]
        ids = np.flatnonzero(logits >= least)
        if (extra := ids.size - params.top_k) > 0:
            ids = np.delete(ids, np.flatnonzero(logits[ids] == least)[-extra:])
        logits = logits[ids]
    scaled = logits.astype(np.float64)
    scaled = (scaled - scaled.max()) / params.temperature
    weights = np.exp(scaled)
    weights /= weights.sum()
    if params.top_p < 1:
        # n tokens of at most (1 - top_p) / n each cannot reach 1 - top_p: none of them is needed,
        # which leaves few to sort.
        few = np.flatnonzero(weights > (1 - params.top_p) / weights.size)
        ranked = few[np.argsort(-weights[few], kind="stable")]
        reached = int(np.searchsorted(np.cumsum(weights[ranked]), params.top_p))
        kept = np.sort(ranked[: reached + 1])
        ids, weights = ids[kept], weights[kept] / weights[kept].sum()
    if not weights.all():
        likely = weights > 0
        ids, weights = ids[likely], weights[likely]
    return Distribution(ids, weights)


def residual(target: Distribution, draft: Distribution) -> Distribution:
    """max(p - q, 0), normalised: what replaces a rejected draft."""
    drafted = np.zeros(1 + max(target.ids[-1], draft.ids[-1]))
    drafted[draft.ids] = draft.weights
    rest = np.maximum(target.weights - drafted[target.ids], 0.0)
    total = rest.sum()
    if total <= 0:  # p = q but for rounding; a rejection is then a matter of rounding too
        return target
    left = rest > 0
    return Distribution(target.ids[left], rest[left] / total)


@dataclass
class Drafts:
    """Draft tokens: greedy ones with their probabilities, sampled ones with the distribution that
    each was drawn from."""

    tokens: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)


class TokenChoice(Protocol):
    logits: bool
    """Whether steps must return logits."""
    params: SamplingParams
    """Of the reply under way, with the seed that it was drawn with."""

    def restart(self) -> None:
        """A new reply begins."""

    def draw(self, output: StepOutput, count: int, drafts: Drafts) -> None:
        """Appends to ``drafts`` the tokens that the first ``count`` rows of a draft step's output
        give, each by itself."""

    def judge(self, output: StepOutput, drafts: Drafts) -> tuple[int, int]:
        """How many drafts are accepted, and the verifier's own next token.

        Row i of ``output`` is what follows the committed tokens and i drafts.
        """


class Greedy:
    logits = False

    def __init__(self, params: SamplingParams) -> None:
        self.params = params

    def restart(self) -> None:
        pass

    def draw(self, output: StepOutput, count: int, drafts: Drafts) -> None:
        drafts.tokens += output.token_ids[:count, 0].tolist()
        drafts.probabilities += output.probability[:count, 0].tolist()

    def judge(self, output: StepOutput, drafts: Drafts) -> tuple[int, int]:
        best = output.token_ids[:, 0].tolist()
        accepted = 0
        for token in drafts.tokens:
            if token != best[accepted]:
                break
            accepted += 1
        return accepted, best[accepted]


class Sampling:
    """One stream of PCG64(seed) uniforms a reply, in this order: one for each draft token drawn;
    in the verify step one for each draft judged, until the first rejection; one for the verifier's
    own token. A seed thus reproduces a reply for one policy; another policy spends the stream
    otherwise, and gives another text of the same distribution.
    """

    logits = True

    def __init__(self, params: SamplingParams) -> None:
        self._asked = params
        self.restart()

    def restart(self) -> None:
        self.params = self._asked
        if self._asked.seed is None:
            self.params = replace(self._asked, seed=secrets.randbits(SEED_BITS))
        self._uniform = np.random.Generator(np.random.PCG64(self.params.seed)).random

    def draw(self, output: StepOutput, count: int, drafts: Drafts) -> None:
        for row in range(count):
            source = self._distribution(output, row)
            drafts.tokens.append(source.draw(self._uniform()))
            drafts.distributions.append(source)

    def judge(self, output: StepOutput, drafts: Drafts) -> tuple[int, int]:
        row = 0
        for token, source in zip(drafts.tokens, drafts.distributions, strict=True):
            target = self._distribution(output, row)
            if self._uniform() * source.probability(token) >= target.probability(token):
                return row, residual(target, source).draw(self._uniform())
            row += 1
        return row, self._distribution(output, row).draw(self._uniform())

    def _distribution(self, output: StepOutput, row: int) -> Distribution:
        assert output.logits is not None, "the sampling variant returns logits"
        return distribution(output.logits[row], self.params)


def token_choice(params: SamplingParams | None) -> TokenChoice:
    """The choice that ``params`` describe; None is greedy."""
    params = params or SamplingParams()
    return Sampling(params) if params.temperature > 0 else Greedy(params)
