"""The command line: one file a verb, and one place where errors become one line.

A verb is a module of this package that defines `command`, a `click.Command`; the module's name is
the verb and the first line of its docstring is what `bitmtp-edge --help` shows. Verbs are found by
reading their source, and imported only when they are asked for, so that help is instant and one
verb's missing package never breaks another. A verb reports trouble by raising `UserError`, and ends
with a particular exit code by `ctx.exit(code)`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from bitmtp_edge import __version__
from bitmtp_edge.errors import Interrupted, SettingError, UserError, describe_os_error, one_line
from bitmtp_edge.wording import printable

PROGRAM = "bitmtp-edge"
USER_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 1


def verb_summary(source: Path) -> str | None:
    """The first docstring line of a verb's source; None if the module defines no `command`."""
    tree = ast.parse(source.read_text(encoding="utf-8"), filename=str(source))
    if not any(_defines_command(node) for node in tree.body):
        return None
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def _defines_command(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name == "command"
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return any(isinstance(target, ast.Name) and target.id == "command" for target in targets)


class VerbGroup(click.Group):
    """A click group whose commands are the verb modules of one package, imported on demand."""

    def __init__(self, package: str, folder: Path, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.package = package
        self.folder = folder

    def _summaries(self) -> dict[str, str]:
        found = ((path.stem, verb_summary(path)) for path in sorted(self.folder.glob("[a-z]*.py")))
        return {verb: summary for verb, summary in found if summary is not None}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        source = self.folder / f"{cmd_name}.py"
        if not cmd_name.isidentifier() or not source.is_file() or verb_summary(source) is None:
            return None
        command: click.Command = importlib.import_module(f"{self.package}.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if summaries := self._summaries():
            with formatter.section("Commands"):
                formatter.write_dl(list(summaries.items()))


cli = VerbGroup(
    __name__,
    Path(__file__).parent,
    help="Low-bit language models with multi-token decoding on edge devices.",
    no_args_is_help=False,  # `main` does it: click's own way has another exit code in each release
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(__version__, prog_name=PROGRAM)(cli)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on `argv` (default: the process's own arguments); return its exit code.

    0: done. 2: the user's input, a file or the machine is at fault, told in one line on stderr.
    130: interrupted, told likewise where something is left. 1: the reader of stdout went away. A
    verb may choose others. Any other exception is a fault of this program and keeps its traceback.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    fill_standard_streams()
    try:
        result = cli.main(arguments or ["--help"], prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Else the interpreter flushes into the closed pipe once more as it exits, and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except click.Abort as abort:
        if isinstance(abort.__context__, EOFError):
            return _report("the input ended early")
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Interrupted as interrupt:
        tell(str(interrupt))
        return INTERRUPTED
    except click.UsageError as error:
        return _report(f"{error.format_message()} {_hint(error, arguments)}")
    except click.ClickException as error:
        return _report(error.format_message())
    except SettingError as error:
        return _report(f"--{error.setting.replace('_', '-')} {error.fault}")
    except UserError as error:
        return _report(str(error))
    except OSError as error:
        return _report(describe_os_error(error))
    except MemoryError as error:
        return _report(f"out of memory: {error}" if str(error) else "out of memory")
    return result if isinstance(result, int) else 0


def fill_standard_streams() -> None:
    """A stream that was closed before the start (``>&-``) reads or writes nothing; left closed, a
    bundle's file would get its number, and lines meant for the terminal with it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for good


def _hint(error: click.UsageError, arguments: Sequence[str]) -> str:
    command = PROGRAM
    if error.ctx:
        command = error.ctx.command_path
    elif not arguments[0].startswith("-"):  # a verb's option lacks its value
        command = f"{PROGRAM} {arguments[0]}"
    return f"(Try '{command} --help'.)"


def _report(message: str) -> int:
    tell(message, "error: ")
    return USER_ERROR


def tell(message: str, kind: str = "") -> None:
    """Prints an error or a notice on stderr."""
    with contextlib.suppress(OSError):  # a full disk: the exit code still tells
        print(f"{PROGRAM}: {kind}{one_line(message)}", file=sys.stderr)


def show(line: str) -> None:
    """Prints a line on stdout, of which nothing steers the terminal: bundles, boards and the
    kernel's files name things as they like."""
    click.echo(printable(line))
