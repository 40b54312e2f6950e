"""``--block auto``: block, min-prefix and plain AR steps chosen as decoding goes on.

What a choice is worth follows from what steps cost here (``costs``) and from how drafts fared
(``acceptance``): expected tokens of an iteration over its expected milliseconds. The best choice is
taken, and looked for anew after a few iterations.

Some choices teach nothing of the others: AR none, a small block nothing of what lies behind it. So
now and then an iteration is a *probe*, a whole block that is verified. Probes have a budget: what
they lost against the best choice stays below ``PROBE_SHARE`` of the time. A probe that gains pays
for the next one, so that a text which turns predictable is soon noticed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from bitmtp_edge.decode.acceptance import Acceptance
from bitmtp_edge.decode.costs import CostTable
from bitmtp_edge.decode.policies import (
    BlockPolicy,
    ConfidenceOnly,
    Hybrid,
    PolicyAround,
)
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.sampling import Drafts, TokenChoice
from bitmtp_edge.engines.base import StepOutput

if TYPE_CHECKING:
    from bitmtp_edge.decode.loop import Decoder

PROBE_SHARE = 0.01
EAGER = 16  # iterations with drafts after each of which the choice is made anew
PATIENT = 16  # iterations with drafts between two choices, after these
BUCKET = 128  # tokens of history that are taken to cost the same


class Choice(NamedTuple):
    """Drafts of an iteration, 0 for an AR step, and how many confident ones go unverified: from
    ``min_prefix`` on. 0: any, and at least one draft. More than ``block``: none."""

    block: int
    min_prefix: int


AR = Choice(0, 0)


@dataclass(frozen=True)
class Prices:
    """Milliseconds of steps at one length of history: ``ar``; ``draft[block][pending - 1]``;
    ``verify[block]``."""

    ar: float
    draft: dict[int, list[float]]
    verify: dict[int, float]

    @classmethod
    def of(cls, costs: CostTable, states: ReplayStates, blocks: list[int], history: int) -> Prices:
        widest = states.draft_widths[-1]
        draft, verify = {}, {}
        for block in blocks:
            rows = [min(pending + block - 1, widest) for pending in range(1, block + 1)]
            widths = [states.width("draft", count, block) for count in rows]
            draft[block] = [costs.ms("draft", w, min(w, block), history) for w in widths]
            width = states.width("verify", block + 1, block + 1)
            verify[block] = costs.ms("verify", width, width, history)
        return cls(costs.ms("verify", states.width("verify", 1, 1), 1, history), draft, verify)

    def ms(self, block: int, pending: int, verified: bool) -> float:
        """An iteration of ``block`` drafts behind ``pending`` tokens."""
        if block == 0:
            return self.ar
        draft = self.draft[block]
        return draft[min(pending, block) - 1] + (self.verify[block] if verified else 0.0)


class Outlook(NamedTuple):
    """``lengths[cut][i]``: the probability of at least i confident drafts. ``right[h][i]``: how
    many of the first i a verify step takes where h are."""

    lengths: list[list[float]]
    right: list[list[float]]

    @classmethod
    def of(cls, acceptance: Acceptance) -> Outlook:
        lengths = [acceptance.confident_lengths(cut) for cut in (False, True)]
        return cls(lengths, acceptance.expected_right())


def rates(outlook: Outlook, prices: Prices, block: int) -> list[float]:
    """Expected tokens a millisecond of ``block``, with each min-prefix of 0 .. ``block`` + 1.

    A block is cut short where its confident drafts go unverified and are not all of it. How often
    that happens follows from how often such a block, and any other, is followed by one. An
    iteration behind a verified one has one pending token, behind an unverified one as many as that
    committed.
    """
    plain, cut = (_sums(outlook, prices, block, lengths) for lengths in outlook.lengths)
    found = []
    for (tokens, ms, cuts), (cut_tokens, cut_ms, cut_cuts) in zip(plain, cut, strict=True):
        often = cuts / (1 + cuts - cut_cuts)  # behind a block cut short
        found.append((tokens + often * (cut_tokens - tokens)) / (ms + often * (cut_ms - ms)))
    return found


def _sums(
    outlook: Outlook, prices: Prices, block: int, at_least: list[float]
) -> list[tuple[float, float, float]]:
    """For each min-prefix, what an iteration gives: tokens, milliseconds, the probability that it
    is cut short."""
    draft, verified_ms = prices.draft[block], prices.verify[block] + prices.draft[block][0]
    shares = [a - b for a, b in pairwise(at_least[: block + 1])] + [at_least[block]]
    tokens = ms = cuts = 0.0
    for confident, share in enumerate(shares):  # min-prefix 0: all go unverified
        taken = confident or 1
        tokens += share * taken
        ms += share * draft[taken - 1]
        if 0 < confident < block:
            cuts += share
    found = [(tokens, ms, cuts)]
    for confident, share in enumerate(shares):  # one length more is verified
        taken = confident or 1
        tokens += share * (1 + outlook.right[confident][block] - taken)
        ms += share * (verified_ms - draft[taken - 1])
        if 0 < confident < block:
            cuts -= share
        found.append((tokens, ms, cuts))
    return found


def default_min_prefix(policy: Hybrid, costs: CostTable, states: ReplayStates) -> int:
    """The min-prefix of ``policy`` that is best by ``costs``, as long as nothing is known of how
    drafts fare."""
    prices = Prices.of(costs, states, [policy.block], costs.short)
    outlook = Outlook.of(Acceptance(policy.block, judged=True))
    found = rates(outlook, prices, policy.block)
    return max(range(1, policy.block + 1), key=lambda least: found[least])


@dataclass(frozen=True)
class _Iteration:
    """What the budget must know of an iteration once it is over."""

    tokens: int  # committed before it
    pending: int
    choice: Choice
    probe: bool


class Adaptive(PolicyAround):
    """``policy`` with its block and, of Hybrid, its min-prefix chosen by what ``costs`` says.

    Text: of SpeculativeOnly, AR's, whatever is chosen. Of Hybrid and ConfidenceOnly, drafts go
    unverified where they are confident, as with a fixed block; which of them do depends on the
    choices. The blocks to choose from are the policy's own and, of a policy that verifies, the
    smaller ones that have a verify width of their own: what lies between gains little, and every
    step of another shape costs a plan. Of masks that see each other both ways, the policy's own
    alone. ``any_prefix``: whether min-prefix is chosen too, or always the policy's. AR steps are
    always among the choices.
    """

    policy: BlockPolicy

    def __init__(self, policy: BlockPolicy, costs: CostTable, *, any_prefix: bool = True) -> None:
        self.policy = policy
        self.costs = costs
        self.chosen: Counter[Choice] = Counter()
        self._any_prefix = any_prefix
        self._verifies = type(policy) is not ConfidenceOnly
        self._tau = policy.tau if isinstance(policy, ConfidenceOnly) else None
        self._acceptance = Acceptance(policy.block, self._tau is not None)
        self._states: dict[int, ReplayStates] = {}
        self._blocks: list[int] = []
        self._prices: Prices | None = None
        self._price_list: dict[int, Prices] = {}
        self._bucket = -1
        self._largest = 0
        self._probes: list[list[Choice]] = []
        self._probe_rates: list[float] = []
        self._queue: list[Choice] = []
        self._best, self._best_rate = AR, 0.0
        self._now = AR
        self._seen = 0
        self._fresh = 0
        self._verified = False
        self._confident = 0
        self._cut = False
        self._last: _Iteration | None = None
        self._spent = 0.0
        self._lost = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """``chosen``: iterations of each choice so far, over all replies."""
        settings = {**self.policy.settings, "block": "auto"}
        if isinstance(self.policy, Hybrid) and self._any_prefix:
            settings["min_prefix"] = "auto"
        return {
            **settings,
            "chosen": [
                {**choice._asdict(), "iterations": count}
                for choice, count in self.chosen.most_common()
            ],
        }

    def restart(self) -> None:
        self._last = None
        self._cut = False

    def check(self, states: ReplayStates) -> None:
        super().check(states)
        largest = self.policy.block
        self._blocks = [largest]
        if not states.full_blocks:
            exact = states.verify_widths
            self._blocks = [b for b in range(2, largest) if not self._verifies or b + 1 in exact]
            self._blocks.append(largest)
        self._states = {block: states.with_draft_outputs(block) for block in self._blocks}
        self._bucket = -1
        self._price_list = {}

    def plan(self, decoder: Decoder, most: int) -> int:
        prefix = decoder.prefix
        length = len(prefix.tokens)
        self._settle(length)
        if length // BUCKET != self._bucket:
            self._price(length // BUCKET)
        if self._fresh >= (PATIENT if self._seen > EAGER else 1):
            self._choose()
        probe = most > 0 and (bool(self._queue) or self._may_probe())
        self._now = AR if most == 0 else self._queue.pop(0) if probe else self._best
        self.chosen[self._now] += 1
        self._verified = True
        pending = length - prefix.drafted
        self._last = _Iteration(length, pending, self._now, probe)
        return min(self._now.block, most)

    def draft(self, decoder: Decoder, count: int) -> Drafts:
        decoder.states = self._states[self._now.block]
        return super().draft(decoder, count)

    def confident(self, drafts: Drafts) -> int | None:
        if self._tau is None:
            return None
        self._confident = 0
        if drafts.tokens:
            self._confident = self.policy.confident(drafts) or 0
            self._saw()
            self._acceptance.see_confident(len(drafts.tokens), self._confident, self._cut)
        return self._confident

    def unverified(self, confident: int | None) -> int:
        length, least = confident or 0, self._now.min_prefix
        count = 0 if length < least else max(length, 1)
        self._verified = count == 0
        self._cut = count > 0 and 0 < length < self._now.block
        return count

    def judge(self, choice: TokenChoice, output: StepOutput, drafts: Drafts) -> tuple[int, int]:
        accepted, following = self.policy.judge(choice, output, drafts)
        self._verified = True
        self._cut = False
        if drafts.tokens:
            if self._tau is None:
                self._saw()
            self._acceptance.see_right(len(drafts.tokens), self._confident, accepted)
        return accepted, following

    def _saw(self) -> None:
        self._seen += 1
        self._fresh += 1

    def _price(self, bucket: int) -> None:
        """Prices at this length of history, and the largest block that is worth a thought.

        That is the block which would be best if all drafts were right. A larger one is never best:
        its later drafts are right no more often than those before them, and cost more.
        """
        self._bucket = bucket
        prices = self._price_list.get(bucket)
        if prices is None:
            states = next(iter(self._states.values()))
            prices = Prices.of(self.costs, states, self._blocks, bucket * BUCKET + BUCKET // 2)
            self._price_list[bucket] = prices
        self._prices = prices
        self._queue = []
        self._fresh = max(self._fresh, PATIENT)

        def best_case(block: int) -> float:
            verified = (block + 1) / prices.ms(block, 1, True)
            unverified = block / prices.ms(block, block, False) if self._tau is not None else 0.0
            return max(verified, unverified)

        block = max(self._blocks, key=best_case)
        self._largest = block if best_case(block) * prices.ar > 1 else 0
        verified = [Choice(block, block + 1)]
        unverified = [Choice(block, self._prefixes(block)[0])] * 2
        self._probes = [verified] * self._verifies + [unverified] * (self._tau is not None)

    def _choose(self) -> None:
        prices = self._prices
        assert prices is not None
        self._fresh = 0
        self._best, self._best_rate = AR, 1 / prices.ar
        if self._largest == 0:
            return
        outlook = Outlook.of(self._acceptance)
        for block in self._blocks:
            if block > self._largest:
                break
            found = self._probe_rates = rates(outlook, prices, block)
            for least in self._prefixes(block):
                if found[least] > self._best_rate:
                    self._best, self._best_rate = Choice(block, least), found[least]

    def _prefixes(self, block: int) -> list[int]:
        if isinstance(self.policy, Hybrid):
            if self._any_prefix:
                return list(range(block + 2))
            return [min(self.policy.min_prefix, block)]
        return [block + 1 if self._tau is None else 0]

    def _may_probe(self) -> bool:
        """Begins a probe if it would teach something and the budget has what it should lose."""
        prices = self._prices
        assert prices is not None
        probe = next((each for each in self._probes if each[0] != self._best), None)
        if self._largest == 0 or probe is None:
            return False
        loss = sum(self._expected_loss(choice, prices) for choice in probe)
        if self._lost + loss > PROBE_SHARE * self._spent:
            return False
        self._queue = list(probe)
        self._probes.remove(probe)
        self._probes.append(probe)
        return True

    def _expected_loss(self, probe: Choice, prices: Prices) -> float:
        """Milliseconds that an iteration of a probe loses against the best choice."""
        ms = prices.ms(probe.block, 1, probe.min_prefix > 0)
        return ms * (1 - self._probe_rates[probe.min_prefix] / self._best_rate)

    def _settle(self, length: int) -> None:
        """Books the iteration before. A gain is worth one more probe, not a store of them."""
        last, prices = self._last, self._prices
        if last is None or prices is None:
            return
        ms = prices.ms(last.choice.block, last.pending, self._verified)
        self._spent += ms
        if last.probe:
            loss = ms - (length - last.tokens) / self._best_rate
            self._lost = max(self._lost + loss, PROBE_SHARE * self._spent - 2 * ms)
