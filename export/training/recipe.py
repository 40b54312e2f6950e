"""The recipe: everything that decides what a training run produces, as one TOML file."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bitmtp_edge.errors import UserError, missing_extra
from bitmtp_edge.records import read_record

# Far above any use; below them no run is prepared for hours that no memory holds.
MOST, MOST_BATCH, MOST_LENGTH, MOST_FACTOR = 1 << 31, 1 << 16, 1 << 20, 1e6


@dataclass(frozen=True)
class StudentRecipe:
    """How the student is made of the checkpoint.

    layers: how many of its layers are kept, evenly spread, the first and the last among them; None
    keeps all. vocabulary: how many of its token ids are kept, from the first; None keeps all.
    group_size: input columns that share a ternary scale; 0 is one scale a tensor (BitNet).
    chat_template: a Jinja file beside the recipe, instead of the checkpoint's own template.
    """

    layers: int | None = None
    vocabulary: int | None = None
    group_size: int = 64
    chat_template: str | None = None


@dataclass(frozen=True)
class ObjectiveRecipe:
    """L = L_NTP + mtp_weight * L_MTP (BitMTP Eq. 3).

    block: D, the tokens that a draft block predicts. blocks: masked blocks laid into each row.
    block_attention: "causal", or "full" for masks that see the later masks of their block too.
    distillation: weight of the teacher's cross-entropy on sources that ask for it; 0 needs no
    teacher.
    """

    block: int = 8
    blocks: int = 64
    mtp_weight: float = 1.0
    block_attention: str = "causal"
    distillation: float = 0.0


@dataclass(frozen=True)
class ScheduleRecipe:
    """Steps and step sizes: linear warm-up, then a cosine down to ``final_rate`` of the rate.

    batch: rows a step; length: tokens a row.
    """

    steps: int
    batch: int = 48
    length: int = 1024
    learning_rate: float = 1.2e-3
    final_rate: float = 0.02
    warmup: int = 200
    weight_decay: float = 0.05
    clip_norm: float = 1.0
    seed: int = 1


@dataclass(frozen=True)
class SourceRecipe:
    """One source of text: a JSONL file (``corpus``), its share of the rows of every step, and
    whether the teacher's distribution is a target there."""

    file: str
    share: float
    distil: bool = False


@dataclass(frozen=True)
class Recipe:
    """A training run. name: what the trained model is called."""

    name: str
    schedule: ScheduleRecipe
    sources: dict[str, SourceRecipe]
    student: StudentRecipe = field(default_factory=StudentRecipe)
    objective: ObjectiveRecipe = field(default_factory=ObjectiveRecipe)

    def values(self) -> dict[str, Any]:
        """Everything in it by its dotted name, such as ``schedule.steps``."""
        return _dotted(asdict(self), "")


def _dotted(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, dict)
        found |= _dotted(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return found


def read_recipe(path: Path) -> Recipe:
    """Reads and checks a recipe. UserError names the field that is wrong."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            raise missing_extra("tomli", "train") from None
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: no UTF-8, no TOML, endless digits
        raise UserError(f"{path} is not a TOML file: {error}") from None
    _fit_warmup(values.get("schedule"))
    recipe = read_record(Recipe, values, str(path))
    check_recipe(recipe, str(path))
    try:
        rows_by_source(recipe)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return recipe


def _fit_warmup(schedule: object) -> None:
    """A short run whose recipe names no warm-up has one of a tenth."""
    if isinstance(schedule, dict) and isinstance(schedule.get("steps"), int):
        schedule.setdefault("warmup", min(ScheduleRecipe.warmup, max(schedule["steps"], 0) // 10))


def check_recipe(recipe: Recipe, where: str) -> None:
    """UserError names the field of ``recipe`` that is out of range."""
    student, objective, schedule = recipe.student, recipe.objective, recipe.schedule
    if not recipe.name or "/" in recipe.name:
        raise UserError(f"{where}: name is {recipe.name!r}, expected a plain name")
    counts = {
        "student.layers": (student.layers, MOST),
        "student.vocabulary": (student.vocabulary, MOST),
        "objective.blocks": (objective.blocks, MOST_LENGTH),
        "schedule.steps": (schedule.steps, MOST),
        "schedule.batch": (schedule.batch, MOST_BATCH),
        "schedule.length": (schedule.length, MOST_LENGTH),
    }
    for name, (number, most) in counts.items():
        if number is not None and not 1 <= number <= most:
            raise UserError(f"{where}: {name} is {number}, expected 1 to {most}")
    if student.group_size not in (0, 64, 128):
        raise UserError(
            f"{where}: student.group_size is {student.group_size}, expected 64, 128, or 0 for one "
            "scale a tensor"
        )
    if not 2 <= objective.block <= 64:
        raise UserError(f"{where}: objective.block is {objective.block}, expected 2 to 64")
    if schedule.length <= objective.block:
        raise UserError(
            f"{where}: schedule.length is {schedule.length}, expected more than the block of "
            f"{objective.block}"
        )
    if objective.blocks > schedule.length:
        raise UserError(
            f"{where}: objective.blocks is {objective.blocks}, expected at most schedule.length, "
            f"{schedule.length}: every block has an anchor of its own"
        )
    if schedule.warmup >= schedule.steps:
        raise UserError(
            f"{where}: schedule.warmup is {schedule.warmup}, expected fewer than schedule.steps, "
            f"{schedule.steps}"
        )
    if not 0 <= schedule.seed < 1 << 32:
        raise UserError(f"{where}: schedule.seed is {schedule.seed}, expected 0 to {(1 << 32) - 1}")
    if objective.block_attention not in ("causal", "full"):
        raise UserError(
            f"{where}: objective.block_attention is {objective.block_attention!r}, expected "
            "'causal' or 'full'"
        )
    not_negative = {
        "objective.mtp_weight": objective.mtp_weight,
        "objective.distillation": objective.distillation,
        "schedule.final_rate": schedule.final_rate,
        "schedule.warmup": schedule.warmup,
        "schedule.weight_decay": schedule.weight_decay,
    }
    for name, value in not_negative.items():
        if not 0 <= value <= MOST_FACTOR:
            raise UserError(f"{where}: {name} is {value}, expected 0 to {MOST_FACTOR:g}")
    positive = {
        "schedule.learning_rate": schedule.learning_rate,
        "schedule.clip_norm": schedule.clip_norm,
    }
    positive |= {f"sources.{name}.share": source.share for name, source in recipe.sources.items()}
    for name, value in positive.items():
        if not 0 < value <= MOST_FACTOR:
            raise UserError(
                f"{where}: {name} is {value}, expected more than 0, at most {MOST_FACTOR:g}"
            )
    for name in recipe.sources:
        if not name.replace("-", "").replace("_", "").isalnum():
            raise UserError(
                f"{where}: a source is called {name!r}, expected letters, digits, - and _"
            )
    if not recipe.sources:
        raise UserError(f"{where}: no sources; expected at least one [sources.NAME]")
    if objective.distillation and not any(source.distil for source in recipe.sources.values()):
        raise UserError(
            f"{where}: objective.distillation is {objective.distillation}, but no source has "
            "distil = true"
        )


def rows_by_source(recipe: Recipe) -> dict[str, int]:
    """Rows of every step by source, distilled sources first: their sum is the batch.

    Largest remainders get the rows that rounding leaves. UserError where a source would get none.
    """
    ordered = sorted(recipe.sources.items(), key=lambda item: not item[1].distil)
    total = sum(source.share for _, source in ordered)
    exact = {name: source.share / total * recipe.schedule.batch for name, source in ordered}
    rows = {name: int(value) for name, value in exact.items()}
    spare = recipe.schedule.batch - sum(rows.values())
    for name in sorted(exact, key=lambda name: rows[name] - exact[name])[:spare]:
        rows[name] += 1
    for name, count in rows.items():
        if count == 0:
            raise UserError(
                f"source {name} gets no row in a batch of {recipe.schedule.batch}: raise its share "
                "or the batch"
            )
    return rows
