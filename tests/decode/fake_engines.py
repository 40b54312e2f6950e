"""Engines without a model, which keep the contract strictly and show any misaligned KV row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import Engine, ReplayState, Role, StepOutput, Window

VERIFY, DRAFT = 1, 2


def mixed(*parts: object) -> int:
    """A hash whose low bits are good, the same in every process (no strings in ``parts``)."""
    return ((hash(parts) & (1 << 64) - 1) * 0x9E3779B97F4A7C15 >> 31) & (1 << 48) - 1


class Row(NamedTuple):
    """A KV row. ``tag`` stands for its bits: it hashes the role, the token, the position and the
    bits of every row attended. ``ideal`` is the tag it would have if all these were verify rows."""

    token: int
    position: int
    tag: int
    ideal: int


class FakeEngine(Engine):
    """One KV buffer of ``segment`` history rows and a workspace; an unwritten row is None.

    Raises AssertionError where a real engine would read or write garbage: reading a row that is
    unwritten or of another position, promoting a spare slot or to another position, a state that
    the bundle does not list or of another segment. ``before_write`` is called before each row is
    promoted, so that a test can interrupt there.
    """

    name = "fake"

    def __init__(self, states: ReplayStates, segment: int | None = None) -> None:
        self._states = {*states.all(), *states.all(logits=True)}
        self._history: list[Row | None] = [None] * (segment or states.segments[0])
        self._workspace: list[Row | None] = [None] * states.max_width
        self.before_write: Callable[[], None] = lambda: None
        self.grown: list[tuple[int, int]] = []
        self.replayed: list[tuple[ReplayState, Window]] = []

    @property
    def segment(self) -> int:
        return len(self._history)

    def replay(self, state: ReplayState, window: Window) -> StepOutput:
        assert state in self._states, f"no such state: {state}"
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
            assert seen[-1] == slot, "a slot attends itself and no later one"
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

    def _row(
        self, role: Role, token: int, position: int, attended: Sequence[Row | None], kv4: int
    ) -> Row:
        return Row(token, position, 0, 0)

    @abstractmethod
    def _output(self, state: ReplayState, rows: Sequence[Row]) -> StepOutput:
        """The outputs of the head slots."""


def step_output(tokens: Sequence[int]) -> StepOutput:
    return StepOutput(
        np.array(tokens, np.int32).reshape(-1, 1), np.ones((len(tokens), 1), np.float32)
    )


class HashEngine(FakeEngine):
    """A model whose next token is a function of the bits of every row it attends.

    A draft row has other bits than a verify row, but mostly predicts the same token: ``noise`` in
    16 times it does not.
    """

    name = "hash"

    def __init__(
        self, states: ReplayStates, segment: int | None = None, vocab: int = 11, noise: int = 4
    ) -> None:
        super().__init__(states, segment)
        self.vocab = vocab
        self._noise = noise

    def reply(self, prompt: Sequence[int], count: int) -> list[int]:
        """What autoregressive decoding must return, worked out without windows or buffers."""
        tokens, ideals = list(prompt), []
        for position in range(len(prompt) + count - 1):
            ideals.append(mixed(VERIFY, tokens[position], position, 0, tuple(ideals)))
            if position >= len(prompt) - 1:
                tokens.append(ideals[-1] % self.vocab)
        return tokens[len(prompt) :]

    def _row(
        self, role: Role, token: int, position: int, attended: Sequence[Row | None], kv4: int
    ) -> Row:
        rows = [row for row in attended if row is not None]
        kind = VERIFY if role == "verify" else DRAFT
        tag = mixed(kind, token, position, kv4, tuple([row.tag for row in rows]))
        ideal = mixed(VERIFY, token, position, 0, tuple([row.ideal for row in rows]))
        return Row(token, position, tag, ideal)

    def _output(self, state: ReplayState, rows: Sequence[Row]) -> StepOutput:
        noisy = self._noise if state.role == "draft" else 16
        return step_output(
            [(row.tag if row.tag // 64 % 16 < noisy else row.ideal) % self.vocab for row in rows]
        )


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
