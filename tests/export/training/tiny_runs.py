"""Tiny checkpoints, texts and recipes for training in seconds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..tiny_models import Tiny, write_folder

if TYPE_CHECKING:
    from bitmtp_edge.export.training.run import Plan

LETTERS = "abcdefghijklmnop"
LENGTH, BLOCK, BLOCKS = 64, 4, 12
SHAPES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": LENGTH,
}


def toml(values: Mapping[str, Mapping[str, Any]]) -> str:
    """A recipe file; ``sources`` is a table of tables."""
    lines = ['name = "tiny"']
    for table, fields in values.items():
        if table == "sources":
            lines.append(toml_tables({f"sources.{name}": value for name, value in fields.items()}))
        else:
            lines.append(toml_tables({table: fields}))
    return "\n".join(lines) + "\n"


def toml_tables(tables: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for name, fields in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(lines)


@dataclass(frozen=True)
class Run:
    """A checkpoint, a recipe beside its texts, and the folder that a run goes to."""

    source: Tiny
    recipe: Path
    folder: Path
    values: dict[str, Any] = field(repr=False)

    def plan(self, **changes: Any) -> Plan:
        from bitmtp_edge.export.training.run import plan

        return plan(self.recipe, self.source.path, self.folder, **changes)

    def rewrite(self, table: str, **changes: Any) -> None:
        """Changes fields of the recipe file."""
        self.values[table] = {**self.values.get(table, {}), **changes}
        self.recipe.write_text(toml(self.values))


def write_lines(path: Path, samples: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path


def alphabet_texts(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts whose every letter follows from the one before."""
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        start, length = draw.randrange(len(LETTERS)), draw.randint(20, 40)
        letters = [LETTERS[(start + i) % len(LETTERS)] for i in range(length)]
        texts.append({"text": "".join(letters)})
    return texts


def alphabet_run(folder: Path, *, steps: int = 6, texts: int = 300, **shapes: Any) -> Run:
    """Trains a checkpoint of two layers on :func:`alphabet_texts`."""
    source = write_folder(folder / "source", **{**SHAPES, **shapes})
    write_lines(folder / "letters.jsonl", alphabet_texts(texts))
    values: dict[str, Any] = {
        "student": {"group_size": 64},
        "objective": {"block": BLOCK, "blocks": BLOCKS},
        "schedule": {
            "steps": steps,
            "batch": 8,
            "length": LENGTH,
            "learning_rate": 5e-3,
            "warmup": min(20, steps // 3),
        },
        "sources": {"letters": {"file": "letters.jsonl", "share": 1}},
    }
    (folder / "recipe.toml").write_text(toml(values))
    return Run(source, folder / "recipe.toml", folder / "run", values)
