"""How a reply looks on a terminal and in a pipe: text on stdout, all else on stderr."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import click

from ..errors import one_line
from ..wording import counted

if TYPE_CHECKING:
    from ..decode.generate import GenerationResult
    from ..decode.loop import Decoder
    from ..decode.stopping import StopRules
    from ..session import Session

NOTED_SECONDS = 1.0  # a shorter wait needs no note


class ReplyPrinter:
    """Prints one reply as its text becomes certain; ``shown`` is the text so far."""

    def __init__(self) -> None:
        self.shown = ""
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A locale that lacks a character must not end the reply.
            sys.stdout.reconfigure(errors="replace")

    def print(
        self,
        session: Session,
        decoder: Decoder,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        rules: StopRules,
    ) -> GenerationResult:
        """Decodes the reply and leaves the cursor at the start of a line."""
        note = PrefillNote()
        try:
            return session.reply(decoder, prompt_ids, max_new_tokens, rules, self._show, note)
        finally:
            note.clear()
            if self.shown and not self.shown.endswith("\n"):
                click.echo()

    def _show(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self.shown += text


class PrefillNote:
    """Tells on a terminal how much of a prompt is read, where that takes long; else nothing.

    It is what ``Session.reply`` calls after every prefill step.
    """

    def __init__(self) -> None:
        self._began = perf_counter()
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        expected = (perf_counter() - self._began) * total / done
        if done == total:
            self.clear()
        elif sys.stderr.isatty() and (self._shown or expected >= NOTED_SECONDS):
            self._shown = True
            self._write(f"\rreading the prompt: {done} of {total} tokens\x1b[K")

    def clear(self) -> None:
        """Takes the note away, if there is one."""
        if self._shown:
            self._shown = False
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def stats_line(result: GenerationResult, energy: str = "auto") -> str:
    """Length and speed of a reply, and what drafting did for it. energy: as ``--energy`` has it: of
    a source that was named it is told why it gave no joules."""
    parts = [f"{counted(result.generated_tokens, 'token')}, {result.tokens_per_s:.1f} tok/s"]
    if result.draft_steps:
        parts.append(f"{result.tokens_per_iteration:.2f} tokens an iteration")
        parts.append(f"{sum(result.accepted_lengths)} of {result.drafted_tokens} drafts accepted")
    if "block" in result.policy_settings:
        parts.append(f"{sum(result.verified)} of {result.iterations} iterations verified")
    if chosen := result.policy_settings.get("chosen"):
        parts.append(f"mostly {describe_choice(chosen[0])}")
    if result.joules_per_token is not None and result.watts is not None:
        parts.append(f"{result.joules_per_token:.3g} J/token at {result.watts:.3g} W")
    elif energy not in ("auto", "off"):
        parts.append(f"no joules: {one_line(result.no_joules or 'no token was generated', 200)}")
    kept = f" ({result.reused_tokens} kept)" if result.reused_tokens else ""
    parts.append(f"prompt {result.prompt_tokens}{kept} in {result.prefill_s:.2f} s")
    ended = {
        "interrupted": "stopped",
        "length": "ended by --max-new-tokens",
        "context": "the context is full",
    }
    if result.stop_string is not None:
        parts.append(f"ended by stop string {result.stop_string!r}")
    elif result.finish_reason in ended:
        parts.append(ended[result.finish_reason])
    if result.sampling["temperature"] > 0:
        parts.append(f"seed {result.sampling['seed']}")
    return ", ".join(parts)


def describe_choice(choice: Mapping[str, int]) -> str:
    """One entry of what block auto chose, of ``Adaptive.settings``."""
    block, least = choice["block"], choice["min_prefix"]
    if block == 0:
        return "ar"
    if least > block:
        return f"block {block} (all verified)"
    return f"block {block} " + (f"(min-prefix {least})" if least else "(none verified)")


def print_stats(result: GenerationResult, energy: str = "auto") -> None:
    """The stats line on stderr, dim on a terminal."""
    click.secho(f"[{stats_line(result, energy)}]", dim=True, err=True)
