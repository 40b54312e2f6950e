"""What a choice of block and min-prefix is worth: expected tokens over what they cost, in
milliseconds or in millijoules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from bitmtp_edge.decode.acceptance import Acceptance, Outlook
from bitmtp_edge.decode.costs import CostTable
from bitmtp_edge.decode.energy_costs import PowerTable
from bitmtp_edge.decode.pace import Pace
from bitmtp_edge.decode.policies import Hybrid
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import Role


class Choice(NamedTuple):
    """Drafts of an iteration, 0 for an AR step, and how many confident ones go unverified: from
    ``min_prefix`` on. 0: any, and at least one draft. More than ``block``: none."""

    block: int
    min_prefix: int


AR = Choice(0, 0)


@dataclass(frozen=True)
class Prices:
    """What steps cost at one length of history, in one unit: ``ar``;
    ``draft[block][pending - 1]``; ``verify[block]``."""

    ar: float
    draft: dict[int, list[float]]
    verify: dict[int, float]

    @classmethod
    def of(
        cls,
        costs: CostTable,
        states: ReplayStates,
        blocks: Iterable[int],
        history: int,
        power: PowerTable | None = None,
    ) -> Prices:
        """In milliseconds, or with ``power`` in millijoules: watts times milliseconds."""

        def price(role: Role, width: int, outputs: int) -> float:
            ms = costs.ms(role, width, outputs, history)
            return ms if power is None else ms * power.watts(role, width)

        widest = states.draft_widths[-1]
        draft, verify = {}, {}
        for block in blocks:
            rows = [min(pending + block - 1, widest) for pending in range(1, block + 1)]
            widths = [states.width("draft", count, block) for count in rows]
            draft[block] = [price("draft", w, min(w, block)) for w in widths]
            width = states.width("verify", block + 1, block + 1)
            verify[block] = price("verify", width, width)
        return cls(price("verify", states.width("verify", 1, 1), 1), draft, verify)

    def at(self, pace: Pace) -> Prices:
        """What they are where iterations run at ``pace``, at the same watts."""
        paces = {block: pace.of(block) for block in self.draft}
        return Prices(
            self.ar * pace.of(0),
            {block: [one * paces[block] for one in each] for block, each in self.draft.items()},
            {block: each * paces[block] for block, each in self.verify.items()},
        )

    def iteration(self, choice: Choice) -> float:
        """An iteration behind a verified one."""
        if choice.block == 0:
            return self.ar
        verify = self.verify[choice.block] if choice.min_prefix > 0 else 0.0
        return self.draft[choice.block][0] + verify


def rates(outlook: Outlook, prices: Prices, block: int, last: int) -> list[float]:
    """Expected tokens of ``block`` over what they cost, with each min-prefix of 0 .. ``last``.

    An iteration behind a verified one has one pending token, behind an unverified one as many as
    that committed. A block is cut short where its confident drafts go unverified and are not all of
    it; the block behind has a confident draft less often, and how often that happens follows.
    """
    draft, right = prices.draft[block], outlook.right(block) if last else []
    verified_cost = draft[0] + prices.verify[block]
    lengths = [*outlook.lengths[: block + 1], 0.0]
    shares = [lengths[i] - lengths[i + 1] for i in range(block + 1)]
    some, none_tokens, none_cost = lengths[1], 1.0, draft[0]
    # Sums over the blocks with a confident draft; all of them go unverified, then ever fewer.
    cut = some - lengths[block]
    tokens = sum(share * length for length, share in enumerate(shares))
    cost = sum(share * each for share, each in zip(shares[1:], draft, strict=True))
    found = []
    for least in range(last + 1):
        if least == 1:
            none_tokens, none_cost = 1 + right[0], verified_cost
        elif least > 1:
            length = least - 1
            tokens += shares[length] * (1 + right[length] - length)
            cost += shares[length] * (verified_cost - draft[length - 1])
            cut -= shares[length] if length < block else 0.0
        often = 1 / (1 + cut * (1 - outlook.after_cut / some)) if cut > 0 else 1.0
        none = 1 - some * often
        found.append((none * none_tokens + often * tokens) / (none * none_cost + often * cost))
    return found


def verified_rate(outlook: Outlook, prices: Prices, block: int) -> float:
    """The same where no draft is confident, so that all blocks are verified."""
    cost = prices.draft[block][0] + prices.verify[block]
    return (1 + sum(outlook.reach(block))) / cost


def default_min_prefix(
    policy: Hybrid, costs: CostTable, states: ReplayStates, power: PowerTable | None = None
) -> int:
    """The min-prefix of ``policy`` that is best by ``costs``, with ``power`` by joules, as long as
    nothing is known of how drafts fare."""
    prices = Prices.of(costs, states, [policy.block], costs.short, power)
    outlook = Acceptance(policy.block, judged=True).outlook()
    found = rates(outlook, prices, policy.block, policy.block)
    return max(range(1, policy.block + 1), key=lambda least: found[least])
