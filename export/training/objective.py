"""The joint objective L = L_NTP + lambda * L_MTP (BitMTP Eq. 3), with an optional teacher."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .blocks import Layout


@dataclass(frozen=True)
class Losses:
    """Means over predicted tokens, in nats: next token, mask slots, and the teacher's
    cross-entropy; each a scalar tensor, 0 where there is nothing to predict."""

    ntp: Tensor
    mtp: Tensor
    distillation: Tensor

    def stacked(self) -> Tensor:
        """The three, [3]."""
        return torch.stack([self.ntp, self.mtp, self.distillation])

    def total(self, mtp_weight: float, distillation_weight: float) -> Tensor:
        return self.ntp + mtp_weight * self.mtp + distillation_weight * self.distillation


def joint_losses(logits: Tensor, layout: Layout, teacher: Tensor | None) -> Losses:
    """logits: [b, T, V]. teacher: logits [r, L, V] for the clean tokens of the first r rows."""
    logits = logits.float()
    normaliser = logits.logsumexp(-1)
    picked = logits.gather(-1, layout.targets.unsqueeze(-1)).squeeze(-1)
    loss = (normaliser - picked) * layout.weights
    clean = layout.clean
    distillation = torch.zeros((), device=logits.device)
    if teacher is not None:
        rows = teacher.shape[0]
        wanted = torch.softmax(teacher.float(), -1)
        expected = (wanted * logits[:rows, :clean]).sum(-1)
        weights = layout.weights[:rows, :clean]
        distillation = _mean((normaliser[:rows, :clean] - expected) * weights, weights)
    return Losses(
        _mean(loss[:, :clean], layout.weights[:, :clean]),
        _mean(loss[:, clean:], layout.weights[:, clean:]),
        distillation,
    )


def _mean(weighted: Tensor, weights: Tensor) -> Tensor:
    return weighted.sum() / weights.sum().clamp(min=1)


def prefix_lengths(logits: Tensor, layout: Layout, block: int) -> Tensor:
    """How many tokens of each draft block are right from its first: float [valid blocks].

    logits: [b, T, V]. Counts blocks all of whose D targets exist: what greedy verification against
    this very text would accept.
    """
    right = logits.argmax(-1) == layout.targets
    masks = layout.anchors.shape[1] * (block - 1)
    start = layout.clean
    first = right.gather(1, layout.anchors).unsqueeze(-1)
    rest = right[:, start : start + masks].unflatten(1, (-1, block - 1))
    valid = layout.weights[:, start : start + masks].unflatten(1, (-1, block - 1)).amin(-1) > 0
    return torch.cat([first, rest], -1).float().cumprod(-1).sum(-1)[valid]
