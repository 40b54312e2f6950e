"""Functions of Python modules as questions."""

from __future__ import annotations

import ast
from random import Random
from typing import Any

SOURCE = '''
def add(left, right):
    """Add two numbers that a caller has read from a file."""
    total = left + right
    if total < 0:
        raise ValueError("the numbers of this file are never negative")
    return total
'''


def test_functions_become_questions(recipe: Any) -> None:
    samples = list(recipe("program_text").function_chats(SOURCE, Random(1)))
    assert len(samples) == 2
    for sample in samples:
        question, reply = (message["content"] for message in sample["messages"])
        if reply.startswith("```python\n"):
            assert ast.parse(reply[len("```python\n") : -len("\n```")])
        else:
            assert reply == "Add two numbers that a caller has read from a file."
            assert reply not in question
