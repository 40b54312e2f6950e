"""The training loop: joint objective, AdamW, warm-up and cosine, resumable at any step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitmtp_edge.errors import UserError
from bitmtp_edge.files import new_file
from bitmtp_edge.progress import Progress

from ..checkpoints.rotary import rotary_table
from .attention import build_mask
from .blocks import Layout, lay_out, slots_of
from .corpus import Corpus, RowSampler
from .interrupts import interrupts_held
from .log import Log
from .model import Decoder
from .objective import Losses, joint_losses, prefix_lengths
from .recipe import Recipe, rows_by_source

STATE_FILE = "state.pt"
LOG_EVERY = 20  # steps: reading a loss waits for the device
VALIDATIONS = 25  # a run
VALIDATION_STEPS = 2  # batches of held-out rows
SAVE_SECONDS = 240.0


@dataclass(frozen=True)
class Batch:
    """Rows of one step on the device: ids int64 [b, L], flags uint8 [b, L]."""

    ids: Tensor
    flags: Tensor


def check_state(path: Path, recipe: Recipe) -> int:
    """The step that the state at ``path`` has reached. UserError if it is damaged or of another
    recipe: names the first field that differs."""
    try:  # mapped: the parameters are not read
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        there, step = dict(state["recipe"]), int(state["step"])
    except Exception as error:  # torch raises whatever its unpickler met
        raise _damaged(path, error) from None
    here = recipe.values()
    for name in (*here, *there):
        if name not in here or name not in there or here[name] != there[name]:
            message = (
                f"{path} is of another recipe: {name} was {there.get(name)!r} and is "
                f"{here.get(name)!r} now; "
            )
            if name == "schedule.steps":
                message += (
                    "learning rates follow from it, so a run is not extended: train on from its "
                    "model, --from, into another folder"
                )
            else:
                message += "resume with the recipe it began with, or train into another folder"
            raise UserError(message)
    return step


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is damaged ({type(error).__name__}): delete it, start again")


class Trainer:
    """One run. ``folder`` takes its state and log; ``corpora`` are the recipe's sources by name.

    device: where it runs; on CUDA in bf16 with compiled layers, elsewhere in fp32. save: called
    with the model whenever the state is saved.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: Decoder,
        teacher: Decoder | None,
        corpora: dict[str, Corpus],
        folder: Path,
        device: torch.device,
        save: Callable[[Decoder], None],
    ) -> None:
        self.recipe = recipe
        self.folder = folder
        self.device = device
        self._save = save
        self.model = model.to(device)
        self.teacher = None if teacher is None else teacher.to(device, self._dtype)
        self.counts = rows_by_source(recipe)
        self.distilled = sum(
            count for name, count in self.counts.items() if recipe.sources[name].distil
        )
        self.samplers = {
            name: RowSampler(
                corpora[name],
                count,
                held_out=corpora[name].held_out(VALIDATION_STEPS * count, name),
                seed=recipe.schedule.seed,
            )
            for name, count in self.counts.items()
        }
        self.rotary = self._rotary(self.model)
        self.teacher_rotary = None if teacher is None else self._rotary(teacher)
        self.optimizer = self._optimizer()
        self.step = 0
        self.logged = 0  # the step of the log's last row
        self.sums = torch.zeros(3, device=device)  # of the losses since
        self._losses: Callable[..., Losses] = self._joint_losses
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            for network in (self.model, self.teacher):
                for layer in network.layers if network is not None else ():
                    layer.compile(dynamic=False)
            self._losses = torch.compile(self._joint_losses, dynamic=False)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    @property
    def _blocks(self) -> int:
        return self.recipe.objective.blocks if self.model.mask_embedding is not None else 0

    @property
    def _tokens(self) -> int:
        return self.recipe.schedule.batch * self.recipe.schedule.length

    def _rotary(self, network: Decoder) -> Tensor:
        config, recipe = network.config, self.recipe
        positions = recipe.schedule.length + recipe.objective.block
        table = rotary_table(config.rope, config.head_dim, 0, positions)
        return torch.from_numpy(table).to(self.device)

    def resume(self) -> None:
        """Goes on from the saved state. UserError if it is damaged."""
        path = self.folder / STATE_FILE
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.sums = state["sums"]
            self.step, self.logged = int(state["step"]), int(state["logged"])
        except Exception as error:  # torch raises whatever its unpickler met
            raise _damaged(path, error) from None

    def describe(self) -> str:
        """What is about to be trained, in one line."""
        recipe, schedule = self.recipe, self.recipe.schedule
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        slots = slots_of(schedule.length, recipe.objective.block, self._blocks)
        return (
            f"{parameters:,} parameters on {self.device} in {str(self._dtype).split('.')[-1]}, "
            f"{slots:,} slots a row, {schedule.batch * schedule.length:,} tokens a step"
        )

    def run(self) -> None:
        """Trains to the recipe's last step. KeyboardInterrupt leaves a state to resume from.

        UserError where a loss is not finite; the state saved before it is kept.
        """
        schedule = self.recipe.schedule
        log = Log(self.folder, self.logged)
        before = log.seconds
        first_step, started = self.step, time.monotonic()
        saved = started
        try:
            with Progress(schedule.steps, "train", "steps") as progress:
                progress.advance(self.step)
                while True:
                    last = self.step == schedule.steps
                    due = self.step == 1 or self.step % LOG_EVERY == 0 or last
                    if due and self.step > self.logged:
                        seconds = time.monotonic() - started
                        rate = (self.step - first_step) * self._tokens / seconds
                        row = self._row() | {"tokens_per_second": rate}
                        row["seconds"] = before + seconds
                        with interrupts_held():  # a row is written once, of all its steps
                            log.add(row)
                            self.logged = self.step
                            self.sums.zero_()
                        progress.note = (
                            f"NTP {row['ntp']:.3f}  MTP {row['mtp']:.3f}  {rate:,.0f} tokens/s"
                        )
                    if last or time.monotonic() - saved > SAVE_SECONDS:
                        self.save()
                        saved = time.monotonic()
                    if last:
                        break
                    self._train_step()
                    progress.advance()
        except KeyboardInterrupt:
            if self.step > first_step:
                self.save()
            raise

    def _row(self) -> dict[str, float]:
        """What the log says of the steps since its last row, without times."""
        ntp, mtp, distillation = (self.sums / (self.step - self.logged)).tolist()
        if not math.isfinite(ntp + mtp + distillation):
            raise self._not_finite()
        row = {
            "step": self.step,
            "tokens": self.step * self._tokens,
            "learning_rate": self._rate(self.step - 1),
            "ntp": ntp,
            "mtp": mtp,
            "distillation": distillation,
        }
        steps = self.recipe.schedule.steps
        often = max(steps // VALIDATIONS, 1)
        if self.step == steps or (self.step % LOG_EVERY == 0 and self.step % often < LOG_EVERY):
            row |= self.validate()
        return row

    def validate(self) -> dict[str, float]:
        """Losses and right prefixes on the held-out rows."""
        losses, prefixes = [], []
        generator = torch.Generator(self.device).manual_seed(0)
        with torch.no_grad():
            for step in range(VALIDATION_STEPS):
                rows = {
                    name: np.arange(step * sampler.count, (step + 1) * sampler.count)
                    % sampler.held_out
                    for name, sampler in self.samplers.items()
                }
                batch = self._batch(rows)
                layout, hidden = self._forward(batch, generator)
                losses.append(self._losses(hidden, layout, None).stacked())
                if self._blocks:
                    logits = self.model.logits(hidden, self._dtype)
                    prefixes.append(prefix_lengths(logits, layout, self.recipe.objective.block))
        ntp, mtp, _ = torch.stack(losses).mean(0).tolist()
        found = {"held_out_ntp": ntp}
        if self._blocks:
            found["held_out_mtp"] = mtp
            whole_blocks = torch.cat(prefixes)
            if len(whole_blocks):
                found["held_out_prefix"] = whole_blocks.mean().item()
        return found

    def save(self) -> None:
        """Writes the state to resume from, and the model. UserError, with both left as they are,
        where a parameter is not finite."""
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            raise self._not_finite()
        state = {
            "recipe": self.recipe.values(),
            "step": self.step,
            "logged": self.logged,
            "sums": self.sums,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        with interrupts_held():
            with new_file(self.folder / STATE_FILE) as file:
                torch.save(state, file)
            self._save(self.model)

    def _not_finite(self) -> UserError:
        return UserError(
            f"the loss is not finite at step {self.step}: lower schedule.learning_rate"
        )

    def _train_step(self) -> None:
        """One step, counted, and its losses added to the sums."""
        objective, schedule = self.recipe.objective, self.recipe.schedule
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(self.step)
        batch = self._batch(
            {name: sampler.indices(self.step) for name, sampler in self.samplers.items()}
        )
        generator = torch.Generator(self.device).manual_seed(schedule.seed * 1_000_003 + self.step)
        layout, hidden = self._forward(batch, generator)
        losses = self._losses(hidden, layout, self._taught(batch))
        losses.total(objective.mtp_weight, objective.distillation).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), schedule.clip_norm)
        with interrupts_held():  # from half an update nothing could go on as if uninterrupted
            self.optimizer.step()
            self.sums += losses.stacked().detach()
            self.step += 1
        self.optimizer.zero_grad(set_to_none=True)

    def _forward(self, batch: Batch, generator: torch.Generator) -> tuple[Layout, Tensor]:
        objective = self.recipe.objective
        layout = lay_out(batch.ids, batch.flags, objective.block, self._blocks, generator)
        mask = build_mask(layout, objective.block_attention == "full")
        hidden = self.model(batch.ids, layout.positions, mask, self.rotary, self._dtype)
        return layout, hidden

    def _taught(self, batch: Batch) -> Tensor | None:
        """The teacher's logits for the rows of distilled sources, which come first."""
        if self.teacher is None:
            return None
        with torch.no_grad():
            ids, flags = batch.ids[: self.distilled], batch.flags[: self.distilled]
            layout = lay_out(ids, flags, 0, 0, None)
            mask = build_mask(layout, False)
            hidden = self.teacher(ids, layout.positions, mask, self.teacher_rotary, self._dtype)
            return self.teacher.logits(hidden, self._dtype)

    def _joint_losses(self, hidden: Tensor, layout: Layout, teacher: Tensor | None) -> Losses:
        return joint_losses(self.model.logits(hidden, self._dtype), layout, teacher)

    def _batch(self, rows: dict[str, Any]) -> Batch:
        ids = [self.samplers[name].corpus.rows[index] for name, index in rows.items()]
        flags = [self.samplers[name].corpus.flags[index] for name, index in rows.items()]
        stacked = torch.from_numpy(np.concatenate(ids).astype(np.int32))
        return Batch(
            stacked.to(self.device, non_blocking=True).long(),
            torch.from_numpy(np.concatenate(flags)).to(self.device, non_blocking=True),
        )

    def _rate(self, step: int) -> float:
        schedule = self.recipe.schedule
        if step < schedule.warmup:
            return schedule.learning_rate * (step + 1) / schedule.warmup
        done = (step - schedule.warmup) / max(schedule.steps - schedule.warmup, 1)
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        return schedule.learning_rate * (schedule.final_rate + (1 - schedule.final_rate) * cosine)

    def _optimizer(self) -> torch.optim.Optimizer:
        matrices = [p for p in self.model.parameters() if p.ndim == 2 and p.shape[0] > 1]
        others = [p for p in self.model.parameters() if p.ndim == 1 or p.shape[0] == 1]
        decay = self.recipe.schedule.weight_decay
        groups = [
            {"params": matrices, "weight_decay": decay},
            {"params": others, "weight_decay": 0.0},
        ]
        fused = self.device.type == "cuda"
        return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=fused)
