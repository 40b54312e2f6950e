"""Words and texts for a terminal."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """``1 point``, ``2 points``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(text: str) -> str:
    """``text``, of which nothing steers a terminal: what does not print is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
