"""A checkpoint's chat template: Jinja, in a sandbox.

The template comes with the weights and is therefore not trusted. The sandbox gives it no way to
Python's objects or to change what it was given; it does not stop a template that loops for long.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bitmtp_edge.errors import UserError


class ChatTemplate:
    """Renders messages to the prompt that the model was trained on."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Compile ``source``; the two tokens are variables of the same names in it.

        Raises UserError if it is no template.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        environment.globals["bos_token"] = bos_token
        environment.globals["eos_token"] = eos_token
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise UserError(
                f"the chat template has a syntax error in line {error.lineno}: "
                f"{_one_line(error.message)}; mend it, or export with another template"
            ) from error
        except Exception as error:  # such as nesting too deep for Python
            raise UserError(
                f"the chat template cannot be compiled: {type(error).__name__}: {_one_line(error)}"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for ``messages``, each with at least ``role`` and ``content``.

        ``variables`` reach the template by name (``tools``, ``enable_thinking``, ...). Raises
        UserError if the template refuses the messages or fails.
        """
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **variables
            )
        except _Refused as error:
            raise UserError(f"the chat template refuses: {_one_line(error)}") from error
        except Exception as error:  # a template can provoke any exception
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise UserError(f"the chat template failed: {kind}{_one_line(error)}") from error


class _Refused(Exception):
    """What the template itself raised."""


class _GenerationBlock(Extension):
    """``{% generation %}`` marks replies for training; in a prompt it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which a prompt must not contain."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200]
