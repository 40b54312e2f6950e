"""The decoding loop (BitMTP's Algorithm 1, BitNest's loop, and AR).

One iteration, :func:`iterate`:

    q      = tokens[drafted:]                             pending; the last of them is the anchor
    d      = policy.begin(...), policy.draft(...)         after q: rows in the draft role
    h      = how many drafts in a row are confident
    commits of h that the policy takes unverified:
             tokens += d[:h]                              pending for the next draft step
    else verify:
             window = tokens[start:] + d                  start = min(verified, n - 1), n tokens
             a      = how many drafts the verifier agrees with
             history[verified:] = rows of tokens and of a drafts
             tokens += d[:a] + [the verifier's next token];   verified = drafted = n + a

With no drafts that is an autoregressive step. A step that is sure to follow begins before the
tokens that it is made of are read, on an engine that has such windows made: another draft step, the
verify step, or behind an autoregressive step the next one. And the first draft step of an iteration
begins before whoever asked for the one before has it. In vain only where the reply ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bitmtp_edge.decode.policies import Policy
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.sampling import Drafts, SamplingParams, token_choice
from bitmtp_edge.decode.state import AcceptedPrefix
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import (
    Engine,
    PendingOutput,
    ReplayState,
    Role,
    StagedStep,
    StagedWindow,
    StepOutput,
    Window,
    check_window,
)
from bitmtp_edge.errors import SettingError, UserError


class Iteration(NamedTuple):
    """What one iteration committed.

    tokens: the committed tokens. drafted: tokens proposed. confident: h, how many of these, from
    the first on, the policy holds for confident; None where it does not ask. accepted: how many of
    them are among ``tokens``. verified: whether a verify step decided. forced_end: the limit left
    room for fewer drafts than the policy makes.
    """

    tokens: list[int]
    drafted: int
    confident: int | None
    accepted: int
    verified: bool
    forced_end: bool


@dataclass(frozen=True)
class _Ahead:
    """A verify step whose ``window`` the engine made before anybody read its drafts, and its output
    where it has begun."""

    window: StagedWindow
    step: StagedStep | StepOutput

    def is_of(self, start: int, tokens: list[int], heads: int) -> bool:
        """Whether it is the step of ``tokens`` behind ``start`` rows."""
        window = self.window
        if window.history_length != start or window.heads != heads:
            return False
        assert window.drafts is not None
        drafts = window.drafts.token_ids[: window.taken, 0].tolist()
        return [*window.prefix, *drafts] == tokens


class _Begun(NamedTuple):
    """An iteration of ``planned`` drafts, to at most ``limit`` tokens, whose first draft step, if
    it has one, has begun. first: output of that step."""

    policy: Policy
    limit: int
    planned: int
    first: StepOutput | None


class Decoder:
    """Decodes one sequence, turn after turn, on one engine that nothing else drives.

    ``context`` limits the tokens of a sequence below what ``states`` allow. ``check`` verifies
    every window against the contract, slowly. Raises UserError if the policy's steps fit no state
    or it does not sample, or for a context out of range.
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
            raise SettingError(
                "context",
                f"is {self.context} tokens: expected 2 to {states.context}, "
                "which is what the bundle was exported for",
            )
        policy.check(states)
        if policy.greedy_only and sampling is not None and sampling.temperature > 0:
            raise UserError(
                f"policy {policy.name} commits the most likely tokens and does not sample: "
                "leave the temperature at 0, or take policy speculative"
            )
        self.engine = engine
        self.states = states.with_draft_outputs(policy.draft_outputs)
        self.policy = policy
        self.choice = token_choice(sampling)
        self.prefix = AcceptedPrefix()
        self.steps: dict[Role, int] = {"draft": 0, "verify": 0}
        self._check = check
        self._ahead: _Ahead | None = None
        self._begun: _Begun | None = None
        self._waits = True  # whether a step has ended when the engine says that it began

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
        self.policy.restart()
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
        limit = min(limit, self.context)
        self._catch_up()
        while len(self.prefix.tokens) < limit:
            iteration = iterate(self, limit)
            if self._can_begin(limit):
                self._begun = begin(self, limit)
            yield iteration

    def _can_begin(self, limit: int) -> bool:
        """Whether another iteration follows, whose first step need not be waited for. One that
        grows the buffer is left until somebody asks: growth is slow, and there may be no memory."""
        length = len(self.prefix.tokens)
        if self._waits or length >= limit:
            return False
        return min(length + self.policy.max_drafts, limit - 1) <= self.engine.segment

    def take_begun(self, limit: int) -> _Begun | None:
        """The iteration that has begun, if it is one of the policy as it is and of ``limit``."""
        begun = self._begun
        if begun is not None and (begun.policy is not self.policy or begun.limit != limit):
            self._drop_begun()
        begun, self._begun = self._begun, None
        return begun

    def _drop_begun(self) -> None:
        """What nobody will ask for is no step."""
        begun, self._begun = self._begun, None
        self._ahead = None
        if begun is not None and begun.first is not None:
            self.steps["draft"] -= 1

    def truncate(self, length: int) -> None:
        """Stops the sequence at ``length`` tokens, if it has more."""
        self._drop_begun()
        self.prefix.truncate(length)

    def step(
        self,
        role: Role,
        start: int,
        following: Sequence[int],
        heads: int,
        kv4_length: int = 0,
        two_way: int = 0,
    ) -> StepOutput:
        """Replays the window of the tokens from ``start`` and of ``following``, drafts or masks.

        Row r of the output belongs to the r-th of the last ``heads`` rows. kv4_length, two_way: as
        in :func:`causal_window`.
        """
        self.steps[role] += 1
        self._ahead = None  # its rows go
        tokens, logits = self.prefix.tokens, self.choice.logits
        output = None
        if not self._made_by_host():
            known = [*tokens[start:], *following[max(0, start - len(tokens)) :]]
            made = StagedWindow(known, start, None, 0, heads, kv4_length, two_way)
            output = self._start(role, made)
        if output is None:
            state, window = self._window(
                role, tokens, start, following, heads, kv4_length, two_way, logits
            )
            output = self.engine.start(state, window)
        self._waits = not isinstance(output, PendingOutput)
        return output

    def draft_behind(self, output: StepOutput, kv4_length: int = 0) -> StepOutput | None:
        """Begins the draft step of the one token that ``output`` gives, before anybody reads it.
        None where it cannot: see :meth:`_start`."""
        window = StagedWindow((), self.prefix.drafted, output, 1, 1, kv4_length)
        following = self._start("draft", window)
        self.steps["draft"] += following is not None
        return following

    def stage_verify(self, drafts: Sequence[int], output: StepOutput, count: int) -> None:
        """Has the engine prepare the verify step of ``drafts`` and the ``count`` more that
        ``output`` gives, before anybody reads these (BitMTP's hoisted preparation); and begin it
        where the policy verifies them whatever they are."""
        start = self.prefix.verify_start
        known = [*self.prefix.tokens[start:], *drafts]
        window = StagedWindow(known, start, output, count, heads=len(drafts) + count + 1)
        if self.policy.verifies_all:
            self._keep(window, self._start("verify", window))
        elif not self._made_by_host(count):
            state = self._state("verify", window.rows, window.heads)
            self._keep(window, self.engine.stage(state, window))

    def run_ahead(self, output: StepOutput) -> None:
        """Has the engine begin the AR step of the token that ``output`` gives, before anybody reads
        it, where there is room. Rows of all other tokens must lie in history."""
        rows = len(self.prefix.tokens)
        if rows < self.engine.segment:
            window = StagedWindow((), rows, output, 1, heads=1)
            self._keep(window, self._start("verify", window))

    def verify_step(self, drafts: Sequence[int]) -> StepOutput:
        """The output of the verify step of the tokens as they are and of ``drafts``, which may have
        been prepared or have begun."""
        ahead, self._ahead = self._ahead, None
        start, heads = self.prefix.verify_start, len(drafts) + 1
        if ahead is None or not ahead.is_of(start, [*self.prefix.tokens[start:], *drafts], heads):
            return self.step("verify", start, drafts, heads)
        self.steps["verify"] += 1
        return ahead.step.start() if isinstance(ahead.step, StagedStep) else ahead.step

    def _keep(self, window: StagedWindow, step: StagedStep | StepOutput | None) -> None:
        self._ahead = None if step is None else _Ahead(window, step)

    def _start(self, role: Role, window: StagedWindow) -> StepOutput | None:
        """None from an engine that does not stage, where sampling draws the drafts, and under
        ``check``, which wants to see every window."""
        if self._made_by_host(window.taken):
            return None
        return self.engine.start_staged(self._state(role, window.rows, window.heads), window)

    def _made_by_host(self, taken: int = 0) -> bool:
        """Whether windows with so many drafts that nobody has read are none of the engine's."""
        return not self.engine.stages or self._check or (self.choice.logits and taken > 0)

    def _state(self, role: Role, rows: int, heads: int) -> ReplayState:
        return self.states.state(role, rows, heads, self.engine.segment, self.choice.logits)

    def promote_draft(self, rows: int) -> None:
        """Keeps the first rows of the last draft step as tentative history, for later drafts."""
        self.engine.promote(range(rows), self.prefix.drafted)
        self.prefix.keep_drafted(rows)

    def fit_pending(self, most: int) -> None:
        """Leaves at most ``most`` >= 1 tokens pending: prefills all but the anchor if more are."""
        if len(self.prefix.tokens) - self.prefix.drafted > most:
            self._catch_up()

    def reserve(self, rows: int) -> None:
        """Room for ``rows`` rows of history: grows before an iteration, never inside a step."""
        if rows > self.engine.segment:
            self.engine.grow(self.states.segment_for(rows), self.prefix.drafted)

    def can_postpone(self, count: int) -> bool:
        """Whether ``count`` more tokens without a verify step leave room for the next one's window.

        Tokens whose rows are final do not count. The last draft step computed the others' rows, but
        a verify step must again.
        """
        states = self.states
        unverified = len(self.prefix.tokens) - self.prefix.verified
        rows = unverified + count + self.policy.max_drafts
        return states.draft_rows_final or rows <= states.verify_widths[-1]

    def _window(
        self,
        role: Role,
        tokens: list[int],
        start: int,
        following: Sequence[int],
        heads: int,
        kv4_length: int,
        two_way: int,
        logits: bool,
    ) -> tuple[ReplayState, Window]:
        rows = len(tokens) - start + len(following)
        state = self.states.state(role, rows, heads, self.engine.segment, logits)
        window = causal_window(
            tokens, start, following, state.width, heads, state.outputs, kv4_length, two_way
        )
        if self._check:
            check_window(state, window, self.states.mask_embeddings, self.states.full_blocks)
        return state, window

    def _catch_up(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Prefill: verify steps over all pending tokens but the last; outputs unread."""
        self._drop_begun()
        prefix = self.prefix
        total = len(prefix.tokens) - 1
        prefix.drop_tentative()
        self.reserve(total)
        while (done := prefix.verified) < total:
            rows = self.states.prefill_rows(total - done)
            ids = prefix.tokens[: done + rows]
            self.steps["verify"] += 1
            self.engine.replay(*self._window("verify", ids, done, (), 1, 0, 0, False))
            self.engine.promote(range(rows), done)
            prefix.keep_verified(rows)
            if progress is not None:
                progress(done + rows, total)


def begin(decoder: Decoder, limit: int) -> _Begun:
    """Begins an iteration, which ends at no more than ``limit`` tokens."""
    policy, n = decoder.policy, len(decoder.prefix.tokens)
    count = policy.plan(decoder, limit - n - 1)
    decoder.reserve(n + count)
    return _Begun(policy, limit, count, policy.begin(decoder, count) if count else None)


def iterate(decoder: Decoder, limit: int) -> Iteration:
    """One iteration of decoding, to at most ``limit`` tokens: draft, then commit or verify."""
    policy, _, count, first = decoder.take_begun(limit) or begin(decoder, limit)
    n = len(decoder.prefix.tokens)
    drafts = Drafts() if first is None else policy.draft(decoder, count, first)
    confident = policy.confident(drafts)
    accepted = policy.unverified(confident) if count else 0
    verified = accepted == 0 or not decoder.can_postpone(accepted)
    if verified:
        ahead = not count and policy.plain_next and n + 1 < limit
        accepted, following = verify(decoder, drafts, ahead)
        committed = [*drafts.tokens[:accepted], following]
        decoder.prefix.commit(committed)
    else:
        committed = drafts.tokens[:accepted]
        decoder.prefix.commit_unverified(committed)
    forced_end = limit - n - 1 < policy.max_drafts
    return Iteration(committed, count, confident, accepted, verified, forced_end)


def verify(decoder: Decoder, drafts: Drafts, ahead: bool = False) -> tuple[int, int]:
    """The verify step of every policy: how many drafts it accepts, and its own next token.

    Rows before ``verified`` are final; the window starts there, so it also replaces what was
    tentative. One that starts with a repeated anchor promotes from row 1 (BitMTP section 3.4).
    ahead: an AR step follows, whatever the token.
    """
    prefix, engine = decoder.prefix, decoder.engine
    start, verified, known = prefix.verify_start, prefix.verified, len(prefix.tokens)
    output = decoder.verify_step(drafts.tokens)
    # While the step runs: what does not depend on its output.
    if verified < known:
        engine.promote(range(verified - start, known - start), verified)
    if ahead:
        decoder.run_ahead(output)
    accepted, following = decoder.policy.judge(decoder.choice, output, drafts)
    if accepted:
        engine.promote(range(known - start, known - start + accepted), known)
    return accepted, following
