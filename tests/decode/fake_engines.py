"""Engines without a model, which keep the contract strictly and show any misaligned KV row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.decode.replay_states import ReplayStates
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
)

VERIFY, DRAFT, MASK = 1, 2, 3


def mixed(*parts: object) -> int:
    """A hash whose low bits are good, the same in every process (no strings in ``parts``)."""
    return ((hash(parts) & (1 << 64) - 1) * 0x9E3779B97F4A7C15 >> 31) & (1 << 48) - 1


class Row(NamedTuple):
    """A KV row. ``tag`` stands for its bits: it hashes the role, the token, the position and the
    bits of every row attended. ``ideal`` is the tag it would have if all these were verify rows.

    A mask's tag hashes the tokens' rows that it attends, and the ids and positions of the masks.
    ``ideals`` are those of the tokens' rows, the row itself included."""

    token: int
    position: int
    tag: int
    ideal: int
    ideals: tuple[int, ...] = ()


def token_tag(kind: int, token: int, position: int, kv4: int, tags: Sequence[int]) -> int:
    """Bits of a token's row behind rows of ``tags``."""
    return mixed(kind, token, position, kv4, tuple(tags))


def mask_tag(
    token: int, position: int, tags: Sequence[int], masks: Sequence[tuple[int, int]]
) -> int:
    """Bits of a mask's row that attends ``masks``, (id, position) each, behind rows of ``tags``."""
    return mixed(MASK, token, position, tuple(tags), tuple(masks))


def continuation(ideals: Sequence[int], count: int, vocab: int) -> list[int]:
    """The next ``count`` autoregressive tokens behind verify rows of tags ``ideals``."""
    rows, tokens = list(ideals), []
    for _ in range(count):
        tokens.append(rows[-1] % vocab)
        rows.append(token_tag(VERIFY, tokens[-1], len(rows), 0, rows))
    return tokens


def guess(tag: int, right: int, noise: int, vocab: int) -> tuple[int, float]:
    """A draft: ``right`` but for ``noise`` times in 16, and its probability, a number of tenths."""
    token = tag % vocab if tag // 64 % 16 < noise else right
    return token, tag // 1024 % 11 / 10


class FakeEngine(Engine):
    """One KV buffer of ``segment`` history rows and a workspace; an unwritten row is None.

    Raises AssertionError where a real engine would read or write garbage: reading a row that is
    unwritten or of another position, promoting a spare slot, a mask or to another position, a mask
    that the model has not or that a token sees, a state that the bundle does not list or of another
    segment. ``before_write`` is called before each row is
    promoted, so that a test can interrupt there.
    """

    name = "fake"

    def __init__(self, states: ReplayStates, segment: int | None = None) -> None:
        self.states = states
        self._listed: dict[int, set[ReplayState]] = {}
        self._history: list[Row | None] = [None] * (segment or states.segments[0])
        self._workspace: list[Row | None] = [None] * states.max_width
        self.before_write: Callable[[], None] = lambda: None
        self.grown: list[tuple[int, int]] = []
        self.replayed: list[tuple[ReplayState, Window]] = []

    @property
    def segment(self) -> int:
        return len(self._history)

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        self._check_state(state)
        assert state.segment == self.segment
        self.replayed.append((state, window))
        past = self._history[: window.history_length]
        assert len(past) == window.history_length, "history ends before history_length"
        for index, row in enumerate(past):
            assert row is not None, f"history row {index} was never written"
            assert row.position == index, f"history row {index} is of position {row.position}"
        self._workspace = [None] * len(self._workspace)
        rows: list[Row | None] = []
        slots = zip(
            window.token_ids.tolist(), window.positions.tolist(), window.mask.tolist(), strict=True
        )
        for slot, (token, position, words) in enumerate(slots):
            seen = [j for j in range(state.width) if words[j // 32] >> (j % 32) & 1]
            assert slot in seen, "a slot attends itself"
            if token < 0:
                rows.append(self._mask_row(state.role, window, slot, seen, past, rows))
                continue
            assert seen[-1] == slot, "a token attends no later slot"
            assert min(window.token_ids[seen]) >= 0, "a token attends a mask"
            if slot > 0 and seen == [slot] and position == window.history_length:
                rows.append(None)  # spare
                continue
            attended = past + [rows[j] for j in seen[:-1]]
            assert all(row is not None for row in attended), "a row attends a spare slot"
            assert [row.position for row in attended if row] == list(range(position))
            row = self._row(state.role, token, position, attended, window.kv4_length)
            rows.append(row)
            self._workspace[slot] = row
        heads = [rows[slot] for slot in window.head_slots.tolist()]
        assert all(row is not None for row in heads), "an output is asked of a spare slot"
        return self._output(state, [row for row in heads if row is not None])

    def promote(self, rows: Sequence[int], at: int) -> None:
        for target, slot in enumerate(rows, at):
            self.before_write()
            row = self._workspace[slot]
            assert row is not None, f"workspace row {slot} is of no token"
            assert row.position == target, f"a row of position {row.position} promoted to {target}"
            assert target < self.segment, f"history row {target} is over the segment"
            self._history[target] = row

    def grow(self, segment: int, rows: int) -> None:
        assert segment > self.segment
        self.grown.append((segment, rows))
        self._history = self._history[:rows] + [None] * (segment - rows)
        self._workspace = [None] * len(self._workspace)

    def close(self) -> None:
        self._history = []

    def _check_state(self, state: ReplayState) -> None:
        """The state must be one of those listed for drafts of some block."""
        block = state.outputs if state.role == "draft" else 1
        if block not in self._listed:
            known = self.states.with_draft_outputs(block)
            self._listed[block] = {*known.all(), *known.all(logits=True)}
        assert state in self._listed[block], f"no such state: {state}"

    def _mask_row(
        self,
        role: Role,
        window: Window,
        slot: int,
        seen: list[int],
        past: list[Row | None],
        rows: list[Row | None],
    ) -> Row:
        ids, positions = window.token_ids.tolist(), window.positions.tolist()
        assert role == "draft", "a verify step has no masks"
        assert ids[slot] >= -self.states.mask_embeddings, f"no mask embedding of id {ids[slot]}"
        tokens = past + [rows[j] for j in seen if ids[j] >= 0]
        masks = [(ids[j], positions[j]) for j in seen if ids[j] < 0]
        assert all(row is not None for row in tokens), "a mask attends a spare slot"
        known = [row for row in tokens if row is not None]
        at = [row.position for row in known] + [position for _, position in masks]
        assert at == list(range(len(at))), f"a mask attends positions {at}"
        last = max(p for i, p in zip(ids, positions, strict=True) if i < 0)
        assert at[-1] == (last if self.states.full_blocks else positions[slot])
        tag = mask_tag(ids[slot], positions[slot], [row.tag for row in known], masks)
        return Row(ids[slot], positions[slot], tag, 0, tuple(row.ideal for row in known))

    def _row(
        self, role: Role, token: int, position: int, attended: Sequence[Row | None], kv4: int
    ) -> Row:
        return Row(token, position, 0, 0)

    @abstractmethod
    def _output(self, state: ReplayState, rows: Sequence[Row]) -> StepOutput:
        """The outputs of the head slots."""


def step_output(tokens: Sequence[int], probabilities: Sequence[float] = ()) -> StepOutput:
    """``probabilities``: 1 unless given."""
    return StepOutput(
        np.array(tokens, np.int32).reshape(-1, 1),
        np.array(probabilities or [1.0] * len(tokens), np.float32).reshape(-1, 1),
    )


class HashEngine(FakeEngine):
    """A model whose next token is a function of the bits of every row it attends.

    Unless draft rows are final, one has other bits than a verify row, but mostly predicts the same
    token: ``noise`` in 16 times it does not. So does a mask, which predicts the token in its place.
    """

    name = "hash"

    def __init__(
        self, states: ReplayStates, segment: int | None = None, vocab: int = 11, noise: int = 4
    ) -> None:
        super().__init__(states, segment)
        self.vocab = vocab
        self.noise = noise

    def reply(self, prompt: Sequence[int], count: int) -> list[int]:
        """What autoregressive decoding must return, worked out without windows or buffers."""
        ideals: list[int] = []
        for position, token in enumerate(prompt):
            ideals.append(token_tag(VERIFY, token, position, 0, ideals))
        return continuation(ideals, count, self.vocab)

    def _row(
        self, role: Role, token: int, position: int, attended: Sequence[Row | None], kv4: int
    ) -> Row:
        rows = [row for row in attended if row is not None]
        kind = VERIFY if role == "verify" or self.states.draft_rows_final else DRAFT
        tag = token_tag(kind, token, position, kv4, [row.tag for row in rows])
        ideals = [row.ideal for row in rows]
        ideals.append(token_tag(VERIFY, token, position, 0, ideals))
        return Row(token, position, tag, ideals[-1], tuple(ideals))

    def _output(self, state: ReplayState, rows: Sequence[Row]) -> StepOutput:
        if state.role == "verify":
            return step_output([row.tag % self.vocab for row in rows])
        ahead = max(row.position + 1 - len(row.ideals) for row in rows) + 1
        right = continuation(rows[0].ideals, ahead, self.vocab)
        drafts = [
            guess(row.tag, right[row.position + 1 - len(row.ideals)], self.noise, self.vocab)
            for row in rows
        ]
        return step_output([token for token, _ in drafts], [p for _, p in drafts])


class StagingEngine(HashEngine):
    """Makes windows, also of outputs that nobody has read.

    staged: how many of these were run. looks: of each output that was read, in that order, its role
    and how many steps had begun behind it.
    """

    stages = True
    staged = 0

    def __init__(
        self, states: ReplayStates, segment: int | None = None, vocab: int = 11, noise: int = 4
    ) -> None:
        super().__init__(states, segment, vocab, noise)
        self.looks: list[tuple[Role, int]] = []

    def start(self, state: ReplayState, window: Window) -> StepOutput:
        output = self.replay(state, window)
        begun = len(self.replayed)

        def look() -> StepOutput:
            self.looks.append((state.role, len(self.replayed) - begun))
            return output

        return Unread(look, output)

    def stage(self, state: ReplayState, window: StagedWindow) -> StagedStep:
        return _Staged(self, state, window)


class Unread(PendingOutput):
    """``output``, which whoever is not the device has not read."""

    output: StepOutput

    def __init__(self, look: Callable[[], StepOutput], output: StepOutput) -> None:
        super().__init__(look)
        object.__setattr__(self, "output", output)


class _Staged(StagedStep):
    def __init__(self, engine: StagingEngine, state: ReplayState, window: StagedWindow) -> None:
        self._engine = engine
        self._state = state
        self._window = window
        self._after = len(engine.replayed)

    def start(self) -> StepOutput:
        engine, state, given = self._engine, self._state, self._window
        assert len(engine.replayed) == self._after, "another step has begun since"
        drafts: list[int] = []
        if given.taken:
            assert isinstance(given.drafts, Unread)
            drafts = given.drafts.output.token_ids[: given.taken, 0].tolist()
            engine.staged += 1
        tokens = [0] * given.history_length + [*given.prefix, *drafts]
        window = causal_window(
            tokens,
            given.history_length,
            (),
            state.width,
            given.heads,
            state.outputs,
            given.kv4_length,
            given.two_way,
        )
        return engine.start(state, window)


class ScriptedEngine(FakeEngine):
    """The token at position p is ``(7 * p) % 10``; drafts agree as often as ``accepts`` says.

    ``accepts[i]`` drafts of round i are right, and all after them are wrong.
    """

    name = "scripted"

    def __init__(self, states: ReplayStates, accepts: Sequence[int]) -> None:
        super().__init__(states, states.segments[-1])
        self._accepts = accepts
        self._round = 0
        self._drafted = 0

    @staticmethod
    def token_at(position: int) -> int:
        return 7 * position % 10

    def _output(self, state: ReplayState, rows: Sequence[Row]) -> StepOutput:
        following = [self.token_at(row.position + 1) for row in rows]
        if state.role == "draft":
            if self._drafted >= self._accepts[self._round]:
                following = [(token + 1) % 10 for token in following]
            self._drafted += 1
        elif self._drafted:
            self._round += 1
            self._drafted = 0
        return step_output(following)


class MarkovEngine(FakeEngine):
    """Logits that depend on the last token and the role: ``verify[token]``, ``draft[token]``."""

    name = "markov"

    def __init__(
        self, states: ReplayStates, verify: NDArray[np.float32], draft: NDArray[np.float32]
    ) -> None:
        super().__init__(states)
        self._tables: dict[Role, NDArray[np.float32]] = {"verify": verify, "draft": draft}

    def _output(self, state: ReplayState, rows: Sequence[Row]) -> StepOutput:
        logits = self._tables[state.role][[row.token for row in rows]]
        best = step_output(logits.argmax(axis=1).tolist())
        return StepOutput(best.token_ids, best.probability, logits if state.logits else None)


class NullEngine(Engine):
    """Does nothing, as fast as it can: what is left is the decoder's own time."""

    name = "null"

    def __init__(self, segment: int) -> None:
        self._segment = segment
        self._outputs: dict[int, StepOutput] = {}

    @property
    def segment(self) -> int:
        return self._segment

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        found = self._outputs.get(state.outputs)
        if found is None:
            found = self._outputs[state.outputs] = step_output([0] * state.outputs)
        return found

    def promote(self, rows: Sequence[int], at: int) -> None:
        pass

    def grow(self, segment: int, rows: int) -> None:
        self._segment = segment

    def close(self) -> None:
        pass
