"""docs/jetson.md: the figures that `plan` predicts, and every message of the TensorRT path."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitmtp_edge.builtin_traces import built_in
from bitmtp_edge.decode.policies import AutoRegressive, Hybrid, NestedSelfSpeculation, Policy
from bitmtp_edge.export.synthetic import describe_synthetic
from bitmtp_edge.planning import SHORT, plan
from bitmtp_edge.profiles import load_profile

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "jetson.md").read_text(encoding="utf-8")
GAP = "…"  # what the table puts for the parts of a message that differ

# Where messages of the TensorRT path are made. Those of other rooms, such as a bundle's, have the
# fix in them and are of no machine.
PYTHON = (
    "building/*.py",
    "engines/tensorrt*.py",
    "engines/pycuda_device.py",
    "engines/gpu_*.py",
    "engines/native_library.py",
    "engines/registry.py",
    "cli/build.py",
    "errors.py",
)
ERRORS = ("UserError", "NotBuilt", "LaunchError", "SettingError", "Interrupted")
PLUGINS = ("*.cpp", "*.h", "operators/*.cpp")


def tables(heading: str) -> list[list[str]]:
    """Cells of the table rows of a section, heads and rules apart."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip().replace("\\|", "|") for cell in row] for row in rows]


PREDICTED = [row for row in tables("0. Which board, which JetPack") if row[0].endswith("b")]


@pytest.mark.parametrize("row", PREDICTED, ids=lambda row: f"{row[0]} {row[1]}")
def test_predictions_are_what_plan_says(row: list[str]) -> None:
    model, board, mode_name, ar, drafting, context = row
    bundle, profile = describe_synthetic(model), load_profile(board.strip("`"))
    mode = profile.mode(mode_name.rstrip("*"))
    assert mode_name.endswith("*") == (mode.flashed == ("super",))
    defaults = bundle.decoding
    policy: Policy = NestedSelfSpeculation(defaults.gamma or 1)
    if defaults.block is not None:
        policy = Hybrid(defaults.block, 0.9, 2)
    traces = built_in(policy)
    asked = [AutoRegressive(), traces[len(traces) // 2]]
    found = plan(bundle, profile, asked, modes=[mode])
    if found.largest_context is None:
        assert (ar, drafting, context, found.rates) == ("–", "–", "none", ())
        return
    first, second = (rate for rate in found.rates if rate.history == SHORT)
    assert ar == f"{first.tokens_per_s:,.0f} ({first.at_most:,.0f})"
    assert drafting == f"{second.tokens_per_s:,.0f}"
    assert context == f"{found.largest_context:,}"


def test_there_are_predictions() -> None:
    assert len(PREDICTED) > 8


# ---- messages ------------------------------------------------------------------------------------


def raised(path: Path) -> Iterator[str]:
    """Messages that a module raises for users, with GAP for what is filled in."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
            if name in ERRORS or name == "__init__":
                yield from filter(_words, (" ".join(_text(each).split()) for each in node.args))


def _words(message: str) -> bool:
    return len(re.sub(rf"[{GAP}\W]", "", message)) > 8


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return GAP


def logged(path: Path) -> Iterator[str]:
    """The same of a plugin's source, whose faults TensorRT's log gets."""
    for text in re.findall(r'Fault\((?:format\()?"([^"]*)"', path.read_text(encoding="utf-8")):
        yield re.sub(r"%\w", GAP, text)


def found(folder: str, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(path for each in patterns for path in (ROOT / folder).glob(each))


MESSAGES = sorted(
    {(path.name, text) for path in found("bitmtp_edge", PYTHON) for text in raised(path)}
    | {(path.name, text) for path in found("plugins/tensorrt", PLUGINS) for text in logged(path)}
)


ROWS = [row[0].strip("`") for row in tables("Messages") if row[0].startswith("`")]


def test_messages_are_found() -> None:
    assert len(MESSAGES) > 50


@pytest.mark.parametrize(("source", "message"), MESSAGES)
def test_every_message_is_in_the_table(source: str, message: str) -> None:
    assert any(row in message for row in ROWS), f"no row of the table fits {source}: {message}"


@pytest.mark.parametrize("row", ROWS)
def test_every_row_is_a_message(row: str) -> None:
    assert _words(row) and any(row in message for _, message in MESSAGES)
