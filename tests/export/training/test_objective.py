"""The joint objective against a loop that adds up one predicted token after the other."""

from __future__ import annotations

import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed: it comes with the extra 'train'"
)

from bitmtp_edge.export.training.blocks import STARTS, TARGET, Layout, lay_out  # noqa: E402
from bitmtp_edge.export.training.objective import joint_losses, prefix_lengths  # noqa: E402

ROWS, LENGTH, BLOCK, BLOCKS, VOCABULARY = 3, 30, 4, 6, 11


def batch(blocks: int = BLOCKS) -> tuple[torch.Tensor, torch.Tensor, Layout]:
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=generator)
    flags = torch.full((ROWS, LENGTH), TARGET, dtype=torch.uint8)
    flags[:, 0] |= STARTS
    flags[:, 17] |= STARTS
    flags[1, 3:9] &= ~TARGET
    return ids, flags, lay_out(ids, flags, BLOCK, blocks, generator)


def logits_of(layout: Layout, seed: int = 0) -> torch.Tensor:
    rows, slots = layout.positions.shape
    return torch.randn(rows, slots, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def predicts(flags: torch.Tensor, row: int, origin: int, at: int) -> bool:
    """Whether the token ``at`` is one that a slot behind the token ``origin`` learns."""
    if at >= LENGTH or any(flags[row, t] & STARTS for t in range(origin + 1, at + 1)):
        return False
    return bool(flags[row, at] & TARGET) and bool(flags[row, origin + 1] & TARGET)


def test_losses_against_a_loop() -> None:
    ids, flags, layout = batch()
    logits = logits_of(layout)
    teacher = logits_of(layout, 1)[:2, :LENGTH]
    found = joint_losses(logits, layout, teacher)
    chances = logits.double().log_softmax(-1)
    wanted = teacher.double().softmax(-1)
    ntp: list[float] = []
    mtp: list[float] = []
    taught: list[float] = []
    for row in range(ROWS):
        for t in range(LENGTH - 1):
            if predicts(flags, row, t, t + 1):
                ntp.append(-chances[row, t, ids[row, t + 1]].item())
                if row < 2:
                    taught.append(-(wanted[row, t] * chances[row, t]).sum().item())
        for index, anchor in enumerate(layout.anchors[row].tolist()):
            for j in range(1, BLOCK):
                if predicts(flags, row, anchor, anchor + j + 1):
                    slot = LENGTH + index * (BLOCK - 1) + j - 1
                    mtp.append(-chances[row, slot, ids[row, anchor + j + 1]].item())
    assert min(map(len, (ntp, mtp, taught))) > 20
    expected = [sum(losses) / len(losses) for losses in (ntp, mtp, taught)]
    assert [found.ntp, found.mtp, found.distillation] == pytest.approx(expected, rel=1e-5)
    total = found.total(0.7, 0.5).item()
    assert total == pytest.approx(expected[0] + 0.7 * expected[1] + 0.5 * expected[2], rel=1e-5)


def test_nothing_to_predict_is_no_loss() -> None:
    ids, flags, _ = batch()
    layout = lay_out(ids, flags & ~TARGET, BLOCK, BLOCKS, None)
    losses = joint_losses(logits_of(layout), layout, logits_of(layout)[:, :LENGTH])
    assert (losses.ntp, losses.mtp, losses.distillation) == (0, 0, 0)


def test_without_masks() -> None:
    """A weight of 0 lays out no masks: the loss is next-token prediction alone."""
    _, _, joint = batch()
    _, _, alone = batch(blocks=0)
    logits = logits_of(joint)
    losses = joint_losses(logits[:, :LENGTH], alone, None)
    assert losses.mtp == 0 and losses.distillation == 0
    assert losses.total(0.0, 0.0) == losses.ntp == joint_losses(logits, joint, None).ntp


def test_a_teacher_that_is_the_student_costs_its_entropy() -> None:
    _, _, layout = batch()
    logits = logits_of(layout)
    logits[..., 0] += 60.0  # all but certain: no entropy
    assert joint_losses(logits, layout, logits[:, :LENGTH]).distillation < 1e-6


def test_prefix_lengths() -> None:
    ids, flags, layout = batch()
    logits = logits_of(layout)
    draw = torch.rand(layout.targets.shape, generator=torch.Generator().manual_seed(2))
    bonus = torch.nn.functional.one_hot(layout.targets, VOCABULARY) * 20.0
    logits += bonus * (draw < 0.7).unsqueeze(-1)
    guesses = logits.argmax(-1)
    expected = []
    for row in range(ROWS):
        for index, anchor in enumerate(layout.anchors[row].tolist()):
            if not predicts(flags, row, anchor, anchor + BLOCK):
                continue
            slots = [anchor, *(LENGTH + index * (BLOCK - 1) + j for j in range(BLOCK - 1))]
            count = 0
            for j, slot in enumerate(slots):
                if guesses[row, slot] != ids[row, anchor + 1 + j]:
                    break
                count += 1
            expected.append(count)
    assert prefix_lengths(logits, layout, BLOCK).tolist() == expected
    assert len(set(expected)) > 2
