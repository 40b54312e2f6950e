"""Answer one prompt."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from ..errors import UserError
from . import INTERRUPTED
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
from .reply import PrefillNote, ReplyPrinter, print_stats


@click.command(name="run", help=__doc__)
@bundle_argument
@click.option("--prompt", metavar="TEXT|-", required=True, help="The prompt; - reads stdin.")
@click.option("--raw", is_flag=True, help="Continue the text: no chat template.")
@max_new_tokens_option(256)
@stop_option
@decoding_options
@engine_options
@energy_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, no stream.")
@click.pass_context
def command(
    ctx: click.Context,
    bundle: str,
    prompt: str,
    raw: bool,
    max_new_tokens: int,
    stop: tuple[str, ...],
    decoding: DecodingChoice,
    engine: EngineChoice,
    energy: str,
    as_json: bool,
) -> None:
    text = _read_stdin() if prompt == "-" else _checked(prompt)
    if not text:
        raise UserError("the prompt is empty: give --prompt a text, or - to read stdin")
    with engine.open(bundle) as session:
        rules = session.stop_rules(stop)
        ids = session.prompt_ids(text, raw=raw)
        with session.open_metering(energy) as session.metering:
            decoder = decoding.decoder(session)  # behind it: what it saves may be joules
            if as_json:
                note = PrefillNote()
                try:
                    result = session.reply(decoder, ids, max_new_tokens, rules, on_prefill=note)
                finally:
                    note.clear()
                click.echo(json.dumps(asdict(result)))
            else:
                result = ReplyPrinter().print(session, decoder, ids, max_new_tokens, rules)
                print_stats(result, energy)
    if result.finish_reason == "interrupted":
        ctx.exit(INTERRUPTED)


def _checked(prompt: str) -> str:
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise UserError("the prompt is not UTF-8: convert it first") from None
    return prompt


def _read_stdin() -> str:
    """All of stdin, without the newline that ends its last line (as a shell's ``$(...)``)."""
    data = sys.stdin.buffer.read()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"the prompt on stdin is not UTF-8 (byte {error.start}): convert it first"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
