"""Masked blocks (BitMTP section 3.2): where they lie behind a row, what they see and predict.

A training row is L clean tokens and then, for each of its blocks, D - 1 mask slots. A block's
anchor is a clean token at position p: the anchor itself predicts d_1, as next-token prediction does
anyway, and the mask at p + j predicts d_{j+1}. Masks see the clean tokens of their sample up to the
anchor and the earlier masks of their block; clean tokens never see a mask, so the autoregressive
path is what it would be without them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TARGET, STARTS = 1, 2  # flags of a corpus token: it is predicted; a sample begins with it
SLOT_MULTIPLE = 128  # what block-sparse attention works in


@dataclass(frozen=True)
class Layout:
    """One batch: b rows of T = L + mask slots.

    clean: L. positions, targets: int64 [b, T]; a mask slot's position is where its token would
    stand. weights: float [b, T], 0 where nothing is predicted. begin, limit: int64 [b, T], slot i
    sees the clean tokens begin..limit. group: int64 [T], the block of a mask slot, -1 for clean.
    anchors: int64 [b, blocks], ascending.
    """

    clean: int
    positions: Tensor
    targets: Tensor
    weights: Tensor
    begin: Tensor
    limit: Tensor
    group: Tensor
    anchors: Tensor


def slots_of(length: int, block: int, blocks: int) -> int:
    """Slots of a row of ``length`` tokens: with masks, filled up to a multiple of 128."""
    if blocks == 0:
        return length
    slots = length + blocks * (block - 1)
    return slots + -slots % SLOT_MULTIPLE


def lay_out(
    ids: Tensor, flags: Tensor, block: int, blocks: int, generator: torch.Generator | None
) -> Layout:
    """Draws ``blocks`` anchors a row among the tokens whose successor is a target.

    ids: int64 [b, L]. flags: uint8 [b, L] of TARGET and STARTS. blocks 0 lays out the clean tokens
    alone.
    """
    rows, length = ids.shape
    device = ids.device
    steps = torch.arange(length, device=device).expand(rows, length)
    begin = torch.where((flags & STARTS) > 0, steps, 0).cummax(dim=1).values
    wanted = ((flags & TARGET) > 0) & ((flags & STARTS) == 0)
    follows = torch.nn.functional.pad(wanted[:, 1:], (0, 1))
    following = torch.nn.functional.pad(ids[:, 1:], (0, 1))
    group = torch.full((length,), -1, device=device)
    if blocks == 0:
        return Layout(length, steps, following, follows.float(), begin, steps, group, steps[:, :0])

    chance = torch.rand(rows, length, generator=generator, device=device) + follows
    anchors = chance.topk(blocks, dim=1).indices.sort(dim=1).values
    ahead = torch.arange(1, block, device=device)
    positions = (anchors.unsqueeze(-1) + ahead).flatten(1)
    anchor_of = anchors.repeat_interleave(block - 1, dim=1)
    predicted = positions + 1
    inside = predicted < length
    predicted = predicted.clamp(max=length - 1)
    valid = (
        inside
        & follows.gather(1, anchor_of)
        & wanted.gather(1, predicted)
        & (begin.gather(1, predicted) == begin.gather(1, anchor_of))
    )
    mask_begin, mask_limit = begin.gather(1, anchor_of), anchor_of
    targets = ids.gather(1, predicted)
    blocks_of = torch.arange(blocks, device=device).repeat_interleave(block - 1)

    spare = slots_of(length, block, blocks) - length - positions.shape[1]
    if spare:  # slots that see themselves alone and predict nothing
        pad = (0, spare)
        positions, targets = (torch.nn.functional.pad(t, pad) for t in (positions, targets))
        valid = torch.nn.functional.pad(valid, pad)
        mask_begin = torch.nn.functional.pad(mask_begin, pad, value=length)
        mask_limit = torch.nn.functional.pad(mask_limit, pad, value=-1)
        blocks_of = torch.cat([blocks_of, blocks + torch.arange(spare, device=device)])
    return Layout(
        length,
        torch.cat([steps, positions], 1),
        torch.cat([following, targets], 1),
        torch.cat([follows, valid], 1).float(),
        torch.cat([begin, mask_begin], 1),
        torch.cat([steps, mask_limit], 1),
        torch.cat([group, blocks_of]),
        anchors,
    )
