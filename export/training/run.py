"""What ``bitmtp-edge train`` does: from a recipe and a checkpoint to a trained checkpoint."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch

from bitmtp_edge.errors import UserError, describe_os_error, missing_extra

from ..checkpoints import open_checkpoint
from ..checkpoints.base import Checkpoint, ModelConfig
from .claim import claimed
from .corpus import Corpus, Encoder, cached_corpus
from .log import plot_losses
from .model import Decoder
from .recipe import Recipe, check_recipe, read_recipe, rows_by_source
from .saved import write_trained
from .student import build_student, build_teacher, student_config
from .trainer import STATE_FILE, VALIDATION_STEPS, Trainer, check_state
from .vocabulary import first_difference, prune_tokenizer

MODEL_FOLDER = "model"


@dataclass(frozen=True)
class Plan:
    """A run before it starts. folder: takes its state, log and picture, and the trained checkpoint
    under :data:`MODEL_FOLDER`. chat_template: what replaces the checkpoint's own, or None."""

    recipe: Recipe
    chat_template: str | None
    source: Path
    data: Path
    rows: Path
    teacher: Path
    folder: Path


def plan(
    recipe_file: Path,
    source: Path,
    folder: Path,
    *,
    data: Path | None = None,
    rows: Path | None = None,
    teacher: Path | None = None,
    steps: int | None = None,
    mtp_weight: float | None = None,
    block_attention: str | None = None,
) -> Plan:
    """Reads the recipe and applies what the command line changes in it."""
    recipe = read_recipe(recipe_file)
    objective, schedule = recipe.objective, recipe.schedule
    if mtp_weight is not None:
        objective = replace(objective, mtp_weight=mtp_weight)
    if block_attention is not None:
        objective = replace(objective, block_attention=block_attention)
    if steps is not None:
        schedule = replace(schedule, steps=steps, warmup=min(schedule.warmup, steps // 10))
    recipe = replace(recipe, objective=objective, schedule=schedule)
    check_recipe(recipe, str(recipe_file))
    return Plan(
        recipe,
        _chat_template(recipe_file, recipe.student.chat_template),
        source,
        recipe_file.parent if data is None else data,
        folder / "rows" if rows is None else rows,
        source if teacher is None else teacher,
        folder,
    )


def prepare(plan: Plan) -> dict[str, Corpus]:
    """The rows of every source, built where they are missing. UserError where training would refuse
    them as too few."""
    with open_checkpoint(plan.source) as checkpoint:
        return _corpora(plan, checkpoint)


def train(plan: Plan, device: str, resume: bool) -> None:
    """Trains and writes the checkpoint to ``plan.folder``. UserError for bad input, one line."""
    where = _device(device)
    for package in ("matplotlib", "safetensors"):  # the end of a run is late to miss them
        if find_spec(package) is None:
            raise missing_extra(package, "train")
    recipe, schedule = plan.recipe, plan.recipe.schedule
    _check_state(plan.folder / STATE_FILE, recipe, resume)  # before any rows are replaced
    with open_checkpoint(plan.source) as checkpoint:
        config = student_config(checkpoint, recipe.student, schedule.length)
        corpora = _corpora(plan, checkpoint)
        tokenizer, template = _text(plan, checkpoint)
        teacher = _teacher(plan, config, tokenizer) if recipe.objective.distillation else None
        student = build_student(checkpoint, recipe.student, recipe.objective, config)

        def save(model: Decoder) -> None:
            write_trained(
                plan.folder / MODEL_FOLDER, model, recipe, checkpoint, tokenizer, template
            )

        try:
            with claimed(plan.folder):
                # Another run may just have ended.
                done = _check_state(plan.folder / STATE_FILE, recipe, resume)
                trainer = Trainer(recipe, student, teacher, corpora, plan.folder, where, save)
                if resume:
                    trainer.resume()
                if done == schedule.steps:
                    _tell(f"this run has finished its {done} steps: only its model is written anew")
                else:
                    _tell(f"{trainer.describe()}{f', from step {done}' if done else ''}")
                trainer.run()
                plot_losses(plan.folder)
        except RuntimeError as error:
            on_gpu = isinstance(error, torch.OutOfMemoryError)
            if not on_gpu and "allocate memory" not in str(error):
                raise
            raise UserError(
                f"the memory does not hold a batch of {schedule.batch} rows of "
                f"{schedule.length} tokens and {recipe.objective.blocks} blocks: lower "
                "schedule.batch or objective.blocks in the recipe"
            ) from None
        except OSError as error:
            raise UserError(f"training stopped: {describe_os_error(error)}") from None


def _tell(line: str) -> None:
    print(f"train: {line}", file=sys.stderr, flush=True)


def _check_state(path: Path, recipe: Recipe, resume: bool) -> int:
    """The step to go on from; 0 for a new run."""
    if resume and not path.is_file():
        raise UserError(f"{path} does not exist: nothing to resume; leave --resume out")
    if not resume and path.exists():
        raise UserError(
            f"{path} holds the state of a run: go on with --resume, or train into another folder"
        )
    return check_state(path, recipe) if resume else 0


def _corpora(plan: Plan, checkpoint: Checkpoint) -> dict[str, Corpus]:
    recipe = plan.recipe
    tokenizer, template = _text(plan, checkpoint)
    stop_ids = checkpoint.text.stop_ids
    if not stop_ids:
        raise UserError(f"{checkpoint.where} names no end token, so texts could not end")
    encoder = Encoder(tokenizer, template, stop_ids[0], checkpoint.text.bos_id)
    digest = hashlib.sha256(json.dumps([tokenizer, template, stop_ids[0]]).encode()).hexdigest()
    vocabulary = recipe.student.vocabulary or checkpoint.config.vocab_size
    corpora = {
        name: cached_corpus(
            plan.data / source.file,
            plan.rows / name,
            encoder,
            recipe.schedule.length,
            vocabulary,
            digest,
        )
        for name, source in recipe.sources.items()
    }
    for name, count in rows_by_source(recipe).items():
        corpora[name].held_out(VALIDATION_STEPS * count, name)
    return corpora


def _text(plan: Plan, checkpoint: Checkpoint) -> tuple[str, str | None]:
    """The student's tokenizer.json and chat template."""
    text = checkpoint.text
    tokenizer = text.tokenizer_json
    if plan.recipe.student.vocabulary is not None:
        tokenizer = prune_tokenizer(tokenizer, plan.recipe.student.vocabulary, checkpoint.where)
    return tokenizer, text.chat_template if plan.chat_template is None else plan.chat_template


def _chat_template(recipe_file: Path, name: str | None) -> str | None:
    if name is None:
        return None
    path = recipe_file.parent / name
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: expected a Jinja chat template") from None
    except ValueError:  # a null character
        raise UserError(f"{recipe_file}: student.chat_template is {name!r}, no file name") from None


def _teacher(plan: Plan, config: ModelConfig, tokenizer: str) -> Decoder:
    """The teacher for a student of ``config`` that reads ``tokenizer``."""
    with open_checkpoint(plan.teacher) as checkpoint:
        if checkpoint.config.vocab_size < config.vocab_size:
            raise UserError(
                f"the teacher {plan.teacher} has {checkpoint.config.vocab_size} token ids, fewer "
                f"than the student's {config.vocab_size}: expected a model of the same vocabulary"
            )
        stray = first_difference(tokenizer, checkpoint.text.tokenizer_json, config.vocab_size)
        if stray is not None:
            raise UserError(
                f"the teacher {plan.teacher} has another vocabulary: its token id {stray} is not "
                "the student's"
            )
        teacher_config = replace(checkpoint.config, vocab_size=config.vocab_size)
        return build_teacher(checkpoint, teacher_config)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"no device {name!r}: expected auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name!r} is not supported: expected auto, cpu, cuda or cuda:N")
    # An index past what torch keeps in a byte comes back negative.
    if device.type == "cuda" and not 0 <= (device.index or 0) < torch.cuda.device_count():
        raise UserError(
            f"device {name!r} is not there: PyTorch sees {torch.cuda.device_count()} CUDA devices"
        )
    return device
