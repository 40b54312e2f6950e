"""Recipes: what a field may be, what is refused in one line, and how a batch is shared out."""

from __future__ import annotations

import copy
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.training.recipe import (
    ObjectiveRecipe,
    Recipe,
    ScheduleRecipe,
    SourceRecipe,
    StudentRecipe,
    read_recipe,
    rows_by_source,
)

from .tiny_runs import toml

if sys.version_info < (3, 11):
    pytest.importorskip("tomli", reason="tomli is not installed: it comes with the extra 'train'")

ROOT = Path(__file__).parents[3]
VALUES: dict[str, Any] = {
    "student": {"layers": 2, "vocabulary": 300, "group_size": 64},
    "objective": {"block": 4, "blocks": 8, "mtp_weight": 0.5, "distillation": 0.25},
    "schedule": {"steps": 50, "batch": 10, "length": 32, "warmup": 5},
    "sources": {
        "a": {"file": "a.jsonl", "share": 2},
        "b": {"file": "b.jsonl", "share": 1, "distil": True},
    },
}


def read(path: Path, text: str) -> Recipe:
    path.write_text(text, encoding="utf-8")
    return read_recipe(path)


def changed(table: str, name: str, value: Any) -> str:
    values = copy.deepcopy(VALUES)
    values[table][name] = value
    return toml(values)


def test_a_recipe_and_its_defaults(tmp_path: Path) -> None:
    recipe = read(tmp_path / "r.toml", toml(VALUES))
    assert (recipe.name, recipe.student.layers, recipe.objective.distillation) == ("tiny", 2, 0.25)
    assert (recipe.objective.block_attention, recipe.schedule.seed) == ("causal", 1)
    assert recipe.sources["b"].distil and not recipe.sources["a"].distil
    least = {"schedule": {"steps": 300}, "sources": {"a": {"file": "a.jsonl", "share": 1}}}
    recipe = read(tmp_path / "least.toml", toml(least))
    assert (recipe.student.layers, recipe.student.vocabulary) == (None, None)


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (60, 6), (2000, 200), (100_000, 200)])
def test_a_short_run_warms_up_shorter(steps: int, warmup: int, tmp_path: Path) -> None:
    values = {"schedule": {"steps": steps}, "sources": {"a": {"file": "a.jsonl", "share": 1}}}
    assert read(tmp_path / "r.toml", toml(values)).schedule.warmup == warmup


@pytest.mark.parametrize(
    ("table", "name", "value", "message"),
    [
        ("student", "layers", 0, "student.layers is 0, expected 1 to 2147483648"),
        (
            "student",
            "layers",
            2.5,
            "student.layers: expected int or NoneType, found the number 2.5",
        ),
        ("student", "vocabulary", -1, "student.vocabulary is -1, expected 1 to 2147483648"),
        ("student", "group_size", 32, "student.group_size is 32, expected 64, 128, or 0"),
        ("student", "depth", 3, "student: unknown field 'depth'"),
        ("objective", "block", 1, "objective.block is 1, expected 2 to 64"),
        ("objective", "block", 65, "objective.block is 65, expected 2 to 64"),
        ("objective", "blocks", 0, "objective.blocks is 0, expected 1 to 1048576"),
        ("objective", "blocks", 33, "objective.blocks is 33, expected at most schedule.length"),
        ("objective", "mtp_weight", -0.1, "objective.mtp_weight is -0.1, expected 0 to 1e"),
        ("objective", "distillation", -1, "objective.distillation is -1.0, expected 0 to 1e"),
        ("objective", "block_attention", "wild", "is 'wild', expected 'causal' or 'full'"),
        ("schedule", "steps", 0, "schedule.steps is 0, expected 1 to 2147483648"),
        ("schedule", "steps", True, "schedule.steps: expected int, found a boolean"),
        ("schedule", "batch", 0, "schedule.batch is 0, expected 1 to 65536"),
        ("schedule", "batch", 10**400, "schedule.batch is 10+, expected 1 to 65536"),
        ("schedule", "length", 10**12, "schedule.length is 10+, expected 1 to 1048576"),
        ("schedule", "batch", 1, "source b gets no row in a batch of 1"),
        ("schedule", "length", 4, "schedule.length is 4, expected more than the block of 4"),
        ("schedule", "learning_rate", 0, "schedule.learning_rate is 0.0, expected more than 0"),
        ("schedule", "learning_rate", 10**400, "expected a number of at most 308 digits"),
        ("schedule", "learning_rate", 1e300, "is 1e.300, expected more than 0, at most 1e"),
        ("schedule", "clip_norm", 0.0, "schedule.clip_norm is 0.0, expected more than 0"),
        ("schedule", "final_rate", -1, "schedule.final_rate is -1.0, expected 0 to 1e"),
        ("schedule", "warmup", -1, "schedule.warmup is -1, expected 0 to 1e"),
        ("schedule", "warmup", 50, "schedule.warmup is 50, expected fewer than schedule.steps"),
        ("schedule", "weight_decay", -1, "schedule.weight_decay is -1.0, expected 0 to 1e"),
        ("schedule", "seed", -1, r"schedule.seed is -1, expected 0 to 4294967295"),
        ("schedule", "seed", 1 << 32, r"schedule.seed is 4294967296, expected 0 to 4294967295"),
        ("sources", "c", {"file": "c", "share": 0}, "c.share is 0.0, expected more than 0"),
        ("sources", "c", {"file": "c", "share": 1e-9}, "source c gets no row in a batch of 10"),
        ("sources", "c", {"share": 1}, "sources.*'c'.*: field 'file' is missing"),
        ("sources", '"../c"', {"file": "c", "share": 1}, "a source is called '../c', expected"),
    ],
)
def test_what_is_refused(table: str, name: str, value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / "r.toml", changed(table, name, value))
    assert "r.toml" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("name", ["learning_rate", "weight_decay"])
def test_numbers_that_are_none(name: str, value: str, tmp_path: Path) -> None:
    text = toml(VALUES).replace("[schedule]", f"[schedule]\n{name} = {value}")
    with pytest.raises(UserError, match=f"schedule.{name} is {value}"):
        read(tmp_path / "r.toml", text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "a/b"\n[schedule]\nsteps = 300\n[sources]\n', "name is 'a/b', expected a plain"),
        ('name = "a"\n[schedule]\nsteps = 300\n[sources]\n', "no sources; expected at least one"),
        ('name = "a"\n[sources]\n', "field 'schedule' is missing"),
        ("name = ", "r.toml is not a TOML file: "),
        ("name = " + "[" * 100_000, "r.toml is not a TOML file: "),
        ("name = " + "1" * 5000, "r.toml is not a TOML file: "),
        ("", "field 'name' is missing"),
    ],
)
def test_files_that_are_no_recipe(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / "r.toml", text)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(UserError, match="is not a TOML file"):
        read_recipe(tmp_path / "r.toml")


def test_distillation_needs_a_source_that_asks_for_it(tmp_path: Path) -> None:
    values = copy.deepcopy(VALUES)
    values["sources"]["b"]["distil"] = False
    with pytest.raises(UserError, match=r"distillation is 0.25, but no source has distil = true"):
        read(tmp_path / "r.toml", toml(values))


def test_its_values_have_dotted_names(tmp_path: Path) -> None:
    values = read(tmp_path / "r.toml", toml(VALUES)).values()
    assert values["name"] == "tiny" and values["schedule.warmup"] == 5
    assert values["sources.b.distil"] is True and values["student.layers"] == 2


def test_rows_of_a_batch(tmp_path: Path) -> None:
    recipe = read(tmp_path / "r.toml", toml(VALUES))
    rows = rows_by_source(recipe)
    assert rows == {"b": 3, "a": 7}  # of 3.33 and 6.67, and the distilled source first
    assert list(rows) == ["b", "a"]


@pytest.mark.parametrize("batch", range(3, 40))
def test_every_batch_is_filled(batch: int, tmp_path: Path) -> None:
    values = copy.deepcopy(VALUES)
    values["schedule"]["batch"] = batch
    values["sources"]["c"] = {"file": "c.jsonl", "share": 1.5}
    rows = rows_by_source(read(tmp_path / "r.toml", toml(values)))
    shares = {"a": 2.0, "b": 1.0, "c": 1.5}
    assert sum(rows.values()) == batch
    for name, count in rows.items():
        assert abs(count - batch * shares[name] / 4.5) < 1


def test_the_shipped_recipe() -> None:
    recipe = read_recipe(ROOT / "examples" / "training" / "recipe.toml")
    assert recipe.student.chat_template is not None
    assert (ROOT / "examples" / "training" / recipe.student.chat_template).is_file()
    slots = recipe.objective.blocks * (recipe.objective.block - 1)
    assert -(recipe.schedule.length + slots) % 128 <= 1  # hardly a slot is padding


def test_the_document_has_every_field_and_its_default() -> None:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", text, re.MULTILINE))
    records = {
        "student.": StudentRecipe,
        "objective.": ObjectiveRecipe,
        "schedule.": ScheduleRecipe,
        "sources.NAME.": SourceRecipe,
    }
    expected = {f"{prefix}{f.name}": f for prefix, kind in records.items() for f in fields(kind)}
    assert [name for name in table if name != "name"] == list(expected)
    for name, field in expected.items():
        if isinstance(field.default, (int, float)) and not isinstance(field.default, bool):
            told = re.findall(r"\(([\d.e-]+)\)|; 0 loads no teacher \((0)\)", table[name])
            numbers = [float(number) for found in told for number in found if number]
            assert field.default in numbers, name
