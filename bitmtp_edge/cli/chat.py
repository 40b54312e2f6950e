"""Talk with a model, turn after turn."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ..errors import UserError, one_line
from .options import (
    DecodingChoice,
    EngineChoice,
    bundle_argument,
    decoding_options,
    energy_option,
    engine_options,
    max_new_tokens_option,
    stop_option,
)
from .reply import ReplyPrinter, print_stats

if TYPE_CHECKING:
    from ..decode.loop import Decoder
    from ..decode.stopping import StopRules
    from ..session import Session

PROMPT = "> "
HELP = """\
/reset  forget the conversation
/help   show this
/exit   leave (as does Ctrl-D)
Ctrl-C  during a reply: stop the reply; at the prompt: clear the line, twice in a row: leave"""
NEARLY_FULL = 0.8  # of the context


@click.command(name="chat", help=__doc__)
@bundle_argument
@click.option("--system", metavar="TEXT", help="A system message for every conversation.")
@max_new_tokens_option(512)
@stop_option
@decoding_options
@engine_options
@energy_option
def command(
    bundle: str,
    system: str | None,
    max_new_tokens: int,
    stop: tuple[str, ...],
    decoding: DecodingChoice,
    engine: EngineChoice,
    energy: str,
) -> None:
    with engine.open(bundle) as session, session.open_metering(energy) as session.metering:
        decoder = decoding.decoder(session)
        rules = session.stop_rules(stop)
        chat = Chat(session, decoder, rules, max_new_tokens, system, energy)
        if sys.stdin.isatty():
            model, policy = session.bundle.model.name, decoder.policy.name
            click.echo(
                f"{one_line(model)}, engine {session.engine.name}, policy {policy}; /help", err=True
            )
        try:
            for line in _lines():
                if not chat.take(line):
                    break
        except KeyboardInterrupt:
            click.echo(err=True)


class Chat:
    """One conversation after another; a reply that fails leaves the conversation as it was."""

    def __init__(
        self,
        session: Session,
        decoder: Decoder,
        rules: StopRules,
        max_new_tokens: int,
        system: str | None,
        energy: str,
    ) -> None:
        """energy: as ``--energy`` has it. Raises UserError if the model cannot chat, or takes no
        system message."""
        self._session = session
        self._decoder = decoder
        self._rules = rules
        self._max_new_tokens = max_new_tokens
        self._energy = energy
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._opening)
        session.chat_ids([*self._opening, {"role": "user", "content": "?"}])

    def take(self, line: str) -> bool:
        """Answers one line of input; false if it asks to leave."""
        text = line.strip()
        if text.startswith("/") and len(text.split()) == 1:
            return self._obey(text)
        if text:
            try:
                self._answer(text)
            except UserError as error:
                _tell(str(error))
        return True

    def _obey(self, text: str) -> bool:
        if text == "/reset":
            self._messages = list(self._opening)
            _tell("the conversation is forgotten")
        elif text == "/help":
            click.echo(HELP, err=True)
        elif text != "/exit":
            _tell(f"no command {text}: /help lists them")
        return text != "/exit"

    def _answer(self, text: str) -> None:
        asked = [*self._messages, {"role": "user", "content": text}]
        printer = ReplyPrinter()
        try:
            ids = self._session.chat_ids(asked)
            if len(ids) >= self._decoder.context:
                raise UserError(
                    f"with this message the conversation has {len(ids)} tokens, and the context "
                    f"of {self._decoder.context} has no room for a reply: say it shorter, or "
                    "/reset, which forgets the conversation"
                )
            result = printer.print(
                self._session, self._decoder, ids, self._max_new_tokens, self._rules
            )
            print_stats(result, self._energy)
            self._warn(result.prompt_tokens + result.generated_tokens)
        except KeyboardInterrupt:
            # Decoding ends a reply by itself; this is the moment before it, or after.
            click.echo(err=True)
        self._messages = [*asked, {"role": "assistant", "content": printer.shown}]

    def _warn(self, used: int) -> None:
        """One line where the context ends soon."""
        context = self._decoder.context
        if used >= NEARLY_FULL * context:
            _tell(
                f"the conversation has {used} of the {context} tokens that the context holds: "
                "/reset forgets it"
            )


def _lines() -> Iterator[str]:
    """Lines of the user: edited at a prompt on a terminal, else read as they come."""
    if not sys.stdin.isatty():
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                raise UserError(f"line {number} of stdin is not UTF-8: convert it first") from None
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() then has line editing and history
    interrupted = False
    while True:
        try:
            line = input(PROMPT)
        except KeyboardInterrupt:
            click.echo(err=True)
            if interrupted:
                return
            interrupted = True
            _tell("Ctrl-C once more, or Ctrl-D, leaves")
        except EOFError:
            click.echo(err=True)
            return
        except UnicodeDecodeError:
            _tell("that line is not UTF-8: type it again")
        else:
            interrupted = False
            yield line


def _tell(text: str) -> None:
    click.echo(f"({' '.join(text.split())})", err=True)
