"""The decoding loop: draft, verify, commit (BitMTP's Algorithm 1, BitNest's loop, and AR).

One iteration:

    drafts = policy.draft(...)                          rows in the draft role, kept tentatively
    window = tokens[start:] + drafts                    start = min(verified, n - 1), n tokens
    a      = how many drafts the verifier agrees with
    history[verified:] = rows of tokens and of a drafts
    tokens += drafts[:a] + [the verifier's next token];   verified = drafted = n + a

With no drafts that is an autoregressive step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bitmtp_edge.decode.policies import Policy
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.sampling import Drafts, SamplingParams, token_choice
from bitmtp_edge.decode.state import AcceptedPrefix
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import Engine, Role, StepOutput, check_window
from bitmtp_edge.errors import UserError

_NO_DRAFTS = Drafts()


@dataclass(frozen=True)
class Iteration:
    """What one iteration committed.

    tokens: the committed tokens. drafted: tokens proposed. accepted: how many of them are among
    ``tokens``. verified: whether a verify step decided. forced_end: the limit left room for fewer
    drafts than the policy makes.
    """

    tokens: list[int]
    drafted: int
    accepted: int
    verified: bool
    forced_end: bool


class Decoder:
    """Decodes one sequence, turn after turn, on one engine that nothing else drives.

    ``context`` limits the tokens of a sequence below what ``states`` allow. ``check`` verifies
    every window against the contract, slowly. Raises UserError if the policy's steps fit no state,
    or for a context out of range.
    """

    def __init__(
        self,
        engine: Engine,
        states: ReplayStates,
        policy: Policy,
        *,
        sampling: SamplingParams | None = None,
        context: int | None = None,
        check: bool = False,
    ) -> None:
        self.context = states.context if context is None else context
        if not 2 <= self.context <= states.context:
            raise UserError(
                f"the context is {self.context} tokens: expected 2 to {states.context}, "
                "which is what the bundle was exported for"
            )
        policy.check(states)
        self.engine = engine
        self.states = states
        self.policy = policy
        self.choice = token_choice(sampling)
        self.prefix = AcceptedPrefix()
        self.steps: dict[Role, int] = {"draft": 0, "verify": 0}
        self._check = check

    def prefill(
        self, prompt_ids: Sequence[int], progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Begins a turn whose tokens so far are ``prompt_ids``; the last one stays pending.

        Rows of what the prompt has in common with the last turn are kept: returns how many.
        ``progress(done, total)`` counts the rows in history. Raises UserError, before any step, for
        a prompt that is empty or leaves no room for a token.
        """
        if not prompt_ids:
            raise UserError("the prompt has no tokens: expected at least one")
        if len(prompt_ids) >= self.context:
            raise UserError(
                f"the prompt has {len(prompt_ids)} tokens, but the context of {self.context} holds "
                f"{self.context - 1} and a reply: shorten the prompt or raise the context"
            )
        self.choice.restart()
        self.prefix.resume(list(prompt_ids))
        kept = self.prefix.verified
        self._catch_up(progress)
        return kept

    def iterations(self, limit: int) -> Iterator[Iteration]:
        """Decodes until the sequence has ``limit`` tokens or the context is full.

        No iteration passes the limit. The caller may stop between two, and an interrupt may come
        at any time: then :meth:`truncate`, another turn or a new call of this go on from what was
        committed. Needs a prefill first.
        """
        prefix, policy = self.prefix, self.policy
        limit = min(limit, self.context)
        self._catch_up()
        while (n := len(prefix.tokens)) < limit:
            count = min(policy.max_drafts, limit - n - 1)
            self._reserve(n + count)
            drafts = policy.draft(self, count) if count else _NO_DRAFTS
            yield verify_step(self, drafts, forced_end=count < policy.max_drafts)

    def truncate(self, length: int) -> None:
        """Stops the sequence at ``length`` tokens, if it has more."""
        self.prefix.truncate(length)

    def step(
        self, role: Role, start: int, drafts: Drafts, heads: int, kv4_length: int = 0
    ) -> StepOutput:
        """Replays the causal window of the tokens and ``drafts`` from ``start``.

        Row r of the output belongs to the r-th of the last ``heads`` rows.
        """
        tokens, logits = self.prefix.tokens, self.choice.logits
        return self._replay(role, tokens, start, drafts.tokens, heads, kv4_length, logits)

    def promote_draft(self, rows: Sequence[int]) -> None:
        """Keeps rows of the last draft step as tentative history, for later drafts to read."""
        self.engine.promote(rows, self.prefix.drafted)
        self.prefix.keep_drafted(len(rows))

    def _replay(
        self,
        role: Role,
        tokens: list[int],
        start: int,
        drafts: Sequence[int],
        heads: int,
        kv4_length: int,
        logits: bool,
    ) -> StepOutput:
        rows = len(tokens) - start + len(drafts)
        state = self.states.state(role, rows, heads, self.engine.segment, logits)
        window = causal_window(tokens, start, drafts, state.width, heads, state.outputs, kv4_length)
        if self._check:
            check_window(state, window)
        self.steps[role] += 1
        return self.engine.replay(state, window)

    def _catch_up(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Prefill: verify steps over all pending tokens but the last; outputs unread."""
        prefix = self.prefix
        total = len(prefix.tokens) - 1
        prefix.drop_tentative()
        self._reserve(total)
        while (done := prefix.verified) < total:
            rows = self.states.prefill_rows(total - done)
            self._replay("verify", prefix.tokens[: done + rows], done, (), 1, 0, False)
            self.engine.promote(range(rows), done)
            prefix.keep_verified(rows)
            if progress is not None:
                progress(done + rows, total)

    def _reserve(self, rows: int) -> None:
        """Room for ``rows`` rows of history: grows before an iteration, never inside a step."""
        if rows > self.engine.segment:
            self.engine.grow(self.states.segment_for(rows), self.prefix.drafted)


def verify_step(decoder: Decoder, drafts: Drafts, forced_end: bool) -> Iteration:
    """The verify step of every policy: commits the accepted drafts and the verifier's own token.

    Rows before ``verified`` are final; the window starts there, so it also replaces what was
    tentative. One that starts with a repeated anchor promotes from row 1 (BitMTP section 3.4).
    """
    prefix, proposed = decoder.prefix, len(drafts.tokens)
    start, verified = prefix.verify_start, prefix.verified
    output = decoder.step("verify", start, drafts, heads=proposed + 1)
    accepted, following = decoder.choice.judge(output, drafts)
    rows = range(verified - start, len(prefix.tokens) - start + accepted)
    if rows:
        decoder.engine.promote(rows, verified)
    committed = [*drafts.tokens[:accepted], following]
    prefix.commit(committed)
    return Iteration(committed, proposed, accepted, True, forced_end)
