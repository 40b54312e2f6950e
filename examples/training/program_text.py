"""Samples from Python source: the standard library, permissively licensed packages, codeio."""

from __future__ import annotations

import ast
import gzip
import json
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from documents import chat

# What is read, where it is installed: import name to licence.
PACKAGES = {
    "anyio": "MIT", "click": "BSD-3-Clause", "contourpy": "BSD-3-Clause", "cycler": "BSD-3-Clause",
    "dateutil": "BSD-3-Clause", "fontTools": "MIT", "fsspec": "BSD-3-Clause", "h11": "MIT",
    "huggingface_hub": "Apache-2.0", "idna": "BSD-3-Clause", "jinja2": "BSD-3-Clause",
    "markdown_it": "MIT", "markupsafe": "BSD-3-Clause", "matplotlib": "PSF-based",
    "mpmath": "BSD-3-Clause", "networkx": "BSD-3-Clause", "numpy": "BSD-3-Clause",
    "packaging": "Apache-2.0 OR BSD-2-Clause", "pygments": "BSD-2-Clause", "pyparsing": "MIT",
    "pytz": "MIT", "rich": "MIT", "safetensors": "Apache-2.0", "sympy": "BSD-3-Clause",
    "tabulate": "MIT", "torch": "BSD-3-Clause", "truststore": "MIT", "yaml": "MIT",
}  # fmt: skip
_UNREAD = re.compile(
    r"/(tests?|testing|site-packages|idlelib|lib2to3|_vendor|_pydecimal|encodings|ensurepip"
    r"|lexers|_mapping|styles|turtledemo|pydoc_data|unicodedata|__pycache__)(/|\.py)"
)
_LARGEST = 400_000  # bytes of a file
_CHUNK = 2200  # characters


def modules() -> list[Path]:
    """Every module to read, of the standard library first."""
    standard = Path(sysconfig.get_paths()["stdlib"])
    roots = [standard]
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            roots.append(origin.parent if origin.name == "__init__.py" else origin)
    found = []
    for root in roots:
        paths = sorted(root.rglob("*.py")) if root.is_dir() else [root]
        below = len(root.as_posix()) if root.is_dir() else 0
        found += [
            path
            for path in paths
            if not _UNREAD.search(path.as_posix()[below:]) and path.stat().st_size < _LARGEST
        ]
    return found


def _chunks(source: str) -> Iterator[str]:
    """The source in pieces that break before a line at the margin, where there is one."""
    piece: list[str] = []
    size = 0
    for line in source.splitlines():
        full = size + len(line) > _CHUNK
        margin = bool(line) and line[0] not in " \t)]}#"
        if piece and (full or (size > _CHUNK // 3 and margin)):
            yield "\n".join(piece).strip("\n")
            piece, size = [], 0
        piece.append(line[:400])
        size += len(line) + 1
    if size > 80:
        yield "\n".join(piece).strip("\n")


_WRITE = (
    "Write a Python function `{0}` that does this: {1}", "Write a Python function `{0}`. {1}",
    "Implement `{0}` in Python. {1}", "I need a Python function called `{0}`: {1}",
)  # fmt: skip
_COMPLETE = ("Complete this Python function:", "Write the body of this function:",
             "Finish this Python code:")  # fmt: skip
_EXPLAIN = ("What does this function do?", "Explain this Python code.", "Describe this function.")


def function_chats(source: str, rng: Random) -> Iterator[dict[str, Any]]:
    """Up to two exchanges for each function with a docstring."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or len(node.body) < 2:
            continue
        first = node.body[0]
        document = ast.get_docstring(node)
        whole = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        if document is None or not 120 < len(whole) < 1800 or first.end_lineno is None:
            continue
        head = textwrap.dedent("\n".join(lines[node.lineno - 1 : first.end_lineno]))
        summary = " ".join(document.split("\n\n")[0].split())
        if not 15 < len(summary) < 400:
            continue
        is_method = bool(node.args.args) and node.args.args[0].arg in ("self", "cls")
        fenced = f"```python\n{whole}\n```"
        kinds = ["complete", "explain"] if is_method else ["write", "complete", "explain"]
        for kind in rng.sample(kinds, 1 if is_method else 2):
            if kind == "write":
                yield chat(rng.choice(_WRITE).format(node.name, summary), fenced)
            elif kind == "complete":
                yield chat(f"{rng.choice(_COMPLETE)}\n\n```python\n{head}\n```", fenced)
            else:
                bare = lines[node.lineno - 1 : first.lineno - 1]
                bare += lines[first.end_lineno : node.end_lineno]
                shown = textwrap.dedent("\n".join(bare))
                question = f"{rng.choice(_EXPLAIN)}\n\n```python\n{shown}\n```"
                yield chat(question, summary)


def module_samples(path: Path, rng: Random) -> Iterator[dict[str, Any]]:
    """One module as plain text in pieces, then its functions as chats."""
    source = path.read_text(encoding="utf-8", errors="ignore")
    for piece in _chunks(source):
        yield {"text": piece}
    try:
        yield from function_chats(source, rng)
    except (SyntaxError, ValueError, RecursionError):
        return  # written for another Python, or nested too deep


def codeio() -> Iterator[dict[str, Any]]:
    """Programming tasks of reasoning-gym's ``codeio`` data, answered by their programs."""
    spec = find_spec("reasoning_gym")
    if spec is None or spec.origin is None:
        return
    data = Path(spec.origin).parent / "data"
    with gzip.open(data / "codeio.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            made = json.loads(line)
            program = made["code_sample"].strip()
            if len(program) > 2200 or not (program + made["task_description"]).isascii():
                continue
            task = made["task_description"].strip()
            details = made["input_output_spec"].strip()
            reply = f"```python\n{program}\n```"
            yield chat(f"Write a Python program for this task. {task}", reply)
            yield chat(f"{task}\n\n{details}\n\nWrite `main_solution` in Python.", reply)
