"""What a user is meant to read, in one line."""

from __future__ import annotations

from .wording import printable

LONGEST_LINE = 2000


class UserError(Exception):
    """A fault in the input, the bundle or the machine, told in one line.

    The message says what is wrong, where, what was expected and what to do. The command line prints
    it on stderr without a traceback and exits with code 2.
    """


class SettingError(UserError):
    """A setting is at fault: the message is its name, ``setting``, and ``fault``. The command line
    names its option instead."""

    def __init__(self, setting: str, fault: str) -> None:
        super().__init__(f"{setting} {fault}")
        self.setting = setting
        self.fault = fault


class Interrupted(Exception):
    """A verb that was interrupted, and what it leaves behind, told in one line; exit code 130."""


def missing_extra(package: str, extra: str) -> UserError:
    """The error for an optional package that is not installed: names the extra that brings it."""
    return UserError(
        f"{package} is not installed: install the extra {extra!r} "
        f"(from a checkout: pip install '.[{extra}]')"
    )


def one_line(text: str, most: int = LONGEST_LINE) -> str:
    """``text`` as one printable line of about ``most`` characters: what a file says must not steer
    the terminal, nor fill it."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= most else f"{line[:most]} ..."


def describe_os_error(error: OSError) -> str:
    """What the system refused, and the path it refused it for, in one line."""
    if error.strerror is None:
        return str(error) or type(error).__name__
    paths = " -> ".join(str(path) for path in (error.filename, error.filename2) if path is not None)
    return f"{paths}: {error.strerror}" if paths else error.strerror
