"""``--block auto``: block, min-prefix and plain AR steps chosen as decoding goes on.

What a choice is worth (``prices``) follows from what steps cost here (``costs``, ``pace``) and from
how drafts fared (``acceptance``): expected tokens of an iteration over its expected milliseconds,
or, to save energy, over its expected millijoules (``energy_costs``). The best choice is taken. A
search for it costs a noticeable part of a step, so the next one is due after an AR step, then after
twice that and so on, and sooner again when the choice has changed. Where drafts fare so much
otherwise than expected that the text must have changed (``surprise``), it is due at once, and what
was seen before counts for less.

Every block tells of all smaller ones, and of what was not seen or not lately, ``acceptance`` is
hopeful. What a choice never shows, tries do: iterations of another choice although it seems to
lose. A share of the time is saved up for that, so what seems to lose little is tried often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from bitmtp_edge.decode.acceptance import Acceptance, Outlook
from bitmtp_edge.decode.costs import CostTable
from bitmtp_edge.decode.energy_costs import PowerTable
from bitmtp_edge.decode.pace import Pace
from bitmtp_edge.decode.policies import (
    BlockPolicy,
    ConfidenceOnly,
    Hybrid,
    PolicyAround,
)
from bitmtp_edge.decode.prices import AR, Choice, Prices, rates, verified_rate
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.sampling import Drafts, TokenChoice
from bitmtp_edge.decode.surprise import Surprise
from bitmtp_edge.engines.base import StepOutput

if TYPE_CHECKING:
    from bitmtp_edge.decode.loop import Decoder

# An AR step's cost, in time or in energy by what is aimed at, is the unit of all of these.
TRY_SHARE = 0.006  # of the cost, what tries are expected to lose
STAY = 1.005  # times the choice that is, by which another must be better
START = 2.0  # AR steps, what may be lost on tries at first
SEARCH = 0.2  # AR steps, what the searches around a try are taken to cost
LONGEST = 16.0, 64.0  # AR steps between two searches, at most: the second where searches are dear
SEARCH_SHARE = 0.005  # of the time, what searches may take from the first of these on
MEMORY = 150  # AR steps in which what was seen of drafts and times fades to 1/e
FORGET = 0.3  # times what it did, what was seen counts when the text has changed
OUTLIER = 1.5  # times its usual time, what an iteration counts for at most
BUCKET = 128  # tokens of history that are taken to cost the same


Objective = Literal["speed", "energy"]


class Adaptive(PolicyAround):
    """``policy`` with its block and, of Hybrid, its min-prefix chosen by what ``costs`` says: for
    the most tokens a second, or with ``power`` for the most tokens a joule.

    Text: of SpeculativeOnly, AR's, whatever is chosen. Of Hybrid and ConfidenceOnly, drafts go
    unverified where they are confident, as with a fixed block; which of them do depends on the
    choices. The blocks to choose from are the policy's own and the smaller ones that have a verify
    width of their own: what lies between gains little, and makes searches dear. Of masks that see
    each other both ways, the policy's own alone. ``any_prefix``: whether min-prefix is chosen too,
    or always the policy's. AR steps are always among the choices. clock: seconds.
    """

    policy: BlockPolicy

    def __init__(
        self,
        policy: BlockPolicy,
        costs: CostTable,
        *,
        power: PowerTable | None = None,
        any_prefix: bool = True,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.policy = policy
        self.costs = costs
        self.power = power
        self.chosen: Counter[Choice] = Counter()
        self._any_prefix = any_prefix
        self._clock = clock
        self._judged = isinstance(policy, ConfidenceOnly)
        self._acceptance = Acceptance(policy.block, self._judged)
        self._checked: ReplayStates | None = None
        self._states: dict[int, ReplayStates] = {}
        self._choices: dict[int, list[int]] = {}
        self._at: dict[int, tuple[Prices, Prices, list[int]]] = {}
        self._now = self._best = AR
        # In AR steps: the cost of an iteration, since the last search, from it to the next one,
        # the same where nothing is tried, and what may be lost on tries.
        self._worth = 1.0
        self._since = 0.0
        self._due = 0.0
        self._hold = 1.0
        self._saved = START
        self._search_s = 0.0  # that the last search took
        self._surprise = Surprise()
        self._confident = 0
        self._cut = False
        # Of the last iteration: its pending tokens, 0 where its time tells nothing; seconds.
        self._pending = 0
        self._began = 0.0
        self._ended = 0.0
        self._verified = False
        # What the choice that is now should take, by the saved costs, and what it took, since the
        # last search: milliseconds.
        self._pace = Pace()
        self._ar_ms = 1.0
        self._draft_ms: list[float] = []
        self._verify_ms = 0.0
        self._cap = 0.0
        self._expected = 0.0
        self._took = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """What a result tells: ``chosen``, iterations of each choice so far, over all replies, and
        their share; ``costs``, of each block's draft step behind a verified iteration and of its
        verify step, behind ``CostTable.short`` rows. Block 0 is an AR step."""
        settings = {**self.policy.settings, "block": "auto"}
        if isinstance(self.policy, Hybrid) and self._any_prefix:
            settings["min_prefix"] = "auto"
        total = max(self.chosen.total(), 1)
        return {
            **settings,
            "objective": self.objective,
            "chosen": [
                {**choice._asdict(), "iterations": count, "share": count / total}
                for choice, count in self.chosen.most_common()
            ],
            "costs": self._told_costs(),
            "power_source": None if self.power is None else self.power.source,
        }

    @property
    def objective(self) -> Objective:
        return "speed" if self.power is None else "energy"

    def restart(self) -> None:
        self._cut = False
        self._pending = 0

    def check(self, states: ReplayStates) -> None:
        if states == self._checked:
            return
        super().check(states)
        largest, exact = self.policy.block, states.verify_widths
        blocks = [largest]
        if not states.full_blocks:
            smaller = (b for b in range(2, largest) if b + 1 in exact)
            blocks = [*smaller, largest]
        self._checked = states
        self._states = {block: states.with_draft_outputs(block) for block in blocks}
        self._choices = {block: self._min_prefixes(block) for block in blocks}
        self._at = {}
        self._due = self._since = 0.0
        self._pending = 0

    def plan(self, decoder: Decoder, most: int) -> int:
        if self._pending and self._ended > self._began:  # else nobody asked for that iteration
            self._see_time()
        if self._surprise.struck:
            self._acceptance.fade(FORGET)
            self._hold, self._due = 1.0, 0.0
        if self._since >= self._due:
            began = self._clock()
            self._search(decoder)
            self._search_s = self._clock() - began
        self._since += self._worth
        choice = self._now if most else AR
        # Fewer drafts, or more pending tokens than such blocks leave, take another time.
        pending = len(decoder.prefix.tokens) - decoder.prefix.drafted
        usual = pending <= len(self._draft_ms) and self._now.block <= most
        self._pending = pending if usual else 0
        # A caller who works beside the draft step counts where that takes longer than the step.
        self._began = self._clock()
        return min(choice.block, most)

    @property
    def plain_next(self) -> bool:
        return self._now == AR and self._since < self._due

    def begin(self, decoder: Decoder, count: int) -> StepOutput:
        decoder.states = self._states[self._now.block]
        return self.policy.begin(decoder, count)

    def confident(self, drafts: Drafts) -> int | None:
        self.chosen[self._now if drafts.tokens else AR] += 1  # not one that was begun in vain
        if not self._judged:
            return None
        self._confident = 0
        if drafts.tokens:
            self._confident = self.policy.confident(drafts) or 0
            if not self._cut and len(drafts.tokens) == self._now.block:
                self._surprise.see(self._confident)
            self._acceptance.see_confident(len(drafts.tokens), self._confident, self._cut)
        return self._confident

    def unverified(self, confident: int | None) -> int:
        length, least = confident or 0, self._now.min_prefix
        count = 0 if length < least else max(length, 1)
        self._cut = count > 0 and 0 < length < self._now.block
        self._verified, self._ended = False, self._clock()  # unless a verify step is yet to come
        return count

    def judge(self, choice: TokenChoice, output: StepOutput, drafts: Drafts) -> tuple[int, int]:
        accepted, following = self.policy.judge(choice, output, drafts)
        self._cut = False
        self._verified, self._ended = True, self._clock()
        if drafts.tokens:
            if not self._judged and len(drafts.tokens) == self._now.block:
                self._surprise.see(accepted)
            self._acceptance.see_right(len(drafts.tokens), self._confident, accepted)
        return accepted, following

    def _see_time(self) -> None:
        expected = self._draft_ms[self._pending - 1]
        if self._verified:
            expected += self._verify_ms
        self._expected += expected
        self._took += min(1e3 * (self._ended - self._began), self._cap * expected)

    def _search(self, decoder: Decoder) -> None:
        keep = (1 - 1 / MEMORY) ** self._since
        self._acceptance.fade(keep)
        self._pace.fade(keep)
        if self._took > 0:
            self._pace.see(self._now.block, self._took / self._ar_ms, self._expected / self._ar_ms)
        self._saved += TRY_SHARE * self._since
        times, saved, blocks = self._prices_at(len(decoder.prefix.tokens))
        prices = saved.at(self._pace)
        outlook = self._acceptance.outlook()
        gains = self._gains(outlook, prices, blocks)
        choices = list(gains)
        best = max(choices, key=gains.__getitem__)
        if gains[best] < STAY * gains.get(self._best, 0.0):
            best = self._best
        longest = 1e3 * self._search_s / SEARCH_SHARE / times.ar
        longest = min(max(longest, LONGEST[0]), LONGEST[1])
        # A change makes searches more frequent, not as frequent as at first: most are of equals.
        self._hold = min(2 * self._hold, longest) if best == self._best else max(self._hold / 2, 1)
        # The last, the largest block that is verified, shows most; AR steps show nothing, so where
        # these are best the likeliest block will do.
        trial = choices[-1]
        if best == AR and blocks:
            trial = max(choices[1:], key=gains.__getitem__)
        lost = 1 - gains[trial] / gains[best]
        loss = SEARCH + prices.iteration(trial) / prices.ar * lost
        if trial != best and loss <= self._saved:
            self._saved -= loss
            self._now, self._due = trial, 0.0
        else:
            if best == AR:  # nothing new will be known before a try
                self._hold = (
                    min((loss - self._saved) / TRY_SHARE, longest) if blocks else LONGEST[1]
                )
            self._now, self._due = best, self._hold
        self._best = best
        self._worth = prices.iteration(self._now) / prices.ar
        self._since = self._took = self._expected = 0.0
        block = self._now.block
        reach = outlook.lengths[1 : block + 1] if self._judged else outlook.reach(block)
        self._surprise.expect(reach)
        self._ar_ms = times.ar
        self._draft_ms = times.draft[block] if block else [times.ar]
        self._verify_ms = times.verify[block] if block else 0.0
        self._cap = OUTLIER * self._pace.of(block)

    def _gains(self, outlook: Outlook, prices: Prices, blocks: list[int]) -> dict[Choice, float]:
        """Tokens of each choice over those of AR steps at the same cost."""
        gains = {AR: 1.0}
        for block in blocks:
            choices = self._choices[block]
            if not self._judged:
                gains[Choice(block, choices[0])] = prices.ar * verified_rate(outlook, prices, block)
                continue
            found = rates(outlook, prices, block, choices[-1])
            gains.update((Choice(block, least), found[least] * prices.ar) for least in choices)
        return gains

    def _prices_at(self, length: int) -> tuple[Prices, Prices, list[int]]:
        """Behind ``length`` tokens: milliseconds, what is to be saved, and the blocks that beat AR
        steps where all drafts are right: others are not worth a try."""
        bucket = length // BUCKET
        found = self._at.get(bucket)
        if found is None:
            assert self._checked is not None
            middle = bucket * BUCKET + BUCKET // 2
            times = prices = Prices.of(self.costs, self._checked, self._choices, middle)
            if self.power is not None:
                prices = Prices.of(self.costs, self._checked, self._choices, middle, self.power)
            flawless = Outlook.flawless(self.policy.block)
            blocks = []
            for block, choices in self._choices.items():
                rate = rates(flawless, prices, block, choices[-1])
                if max(rate[least] for least in choices) * prices.ar > 1:
                    blocks.append(block)
            found = self._at[bucket] = times, prices, blocks
        return found

    def _min_prefixes(self, block: int) -> list[int]:
        """What there is to choose from with ``block``."""
        if isinstance(self.policy, Hybrid):
            if self._any_prefix:
                return list(range(block + 2))
            return [min(self.policy.min_prefix, block)]
        return [0 if self._judged else block + 1]

    def _told_costs(self) -> list[dict[str, Any]]:
        """Empty before any decoder has asked for the states."""
        if self._checked is None:
            return []
        told: list[dict[str, Any]] = [{"block": block} for block in (0, *self._choices)]
        for unit, power in (("ms", None), ("mj", self.power)):
            if unit == "ms" or power is not None:
                short = self.costs.short
                prices = Prices.of(self.costs, self._checked, self._choices, short, power)
                for entry in told:
                    block = entry["block"]
                    entry[f"draft_{unit}"] = prices.draft[block][0] if block else None
                    entry[f"verify_{unit}"] = prices.verify[block] if block else prices.ar
        return told
