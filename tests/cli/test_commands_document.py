"""docs/commands.md has every option of every verb, and the JSON fields of run, bench and eval."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import pytest

from bitmtp_edge.benchmark_report import (
    BenchReport,
    PolicyReport,
    ReplyRow,
    RuntimeReport,
    StepCost,
)
from bitmtp_edge.cli import cli
from bitmtp_edge.decode.generate import GenerationResult
from bitmtp_edge.evaluation_report import EvalReport, ItemRow, PolicyFigures, TaskFigures

TEXT = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
PARTS = TEXT.split("\n## ")
VERBS = cli.list_commands(click.Context(cli))


def rows(text: str) -> list[list[str]]:
    """Cells of every line of a table, head and rule included."""
    lines = re.findall(r"^\|(.*)\|$", text.replace("\\|", "/"), re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def named(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_verb(verb: str) -> None:
    told: set[str] = set()
    owner = ""
    for first, second, *_ in rows(PARTS[1]):
        if first.startswith("`--"):
            of_all = second.startswith("all but ")
            if (verb in second.replace(",", "").split()) != of_all:
                told.update(re.findall(r"--[-a-z]+", first))
            continue
        owner = first.strip("`").split()[0] if first else owner
        if owner == verb:
            told.update(re.findall(r"(?<=`)-[-a-z]+", second))
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert told == {name for option in options for name in option.opts}


@pytest.mark.parametrize(
    ("part", "table", "kind", "extra"),
    [
        (2, 0, GenerationResult, []),
        (3, 0, BenchReport, ["ok"]),
        (3, 1, PolicyReport, []),
        (3, 2, StepCost, []),
        (3, 3, ReplyRow, []),
        (3, 4, RuntimeReport, []),
        (4, 0, EvalReport, ["ok"]),
        (4, 1, PolicyFigures, []),
        (4, 2, TaskFigures, []),
        (4, 3, ItemRow, []),
    ],
)
def test_every_field_in_order(part: int, table: int, kind: type, extra: list[str]) -> None:
    body = PARTS[part].split("| field |")[1 + table]
    told = [name for first, *_ in rows(body) for name in named(first)]
    assert told == [*extra, *(field.name for field in fields(kind))]
