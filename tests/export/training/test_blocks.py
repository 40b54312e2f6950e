"""Masked blocks see what a draft window of decoding sees, and clean tokens never see them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed: it comes with the extra 'train'"
)

from bitmtp_edge.export.checkpoints.base import ModelConfig  # noqa: E402
from bitmtp_edge.export.checkpoints.rotary import Rope, rotary_table  # noqa: E402
from bitmtp_edge.export.training.attention import build_mask, visibility  # noqa: E402
from bitmtp_edge.export.training.blocks import STARTS, TARGET, Layout, lay_out  # noqa: E402
from bitmtp_edge.export.training.model import Decoder  # noqa: E402

LENGTH, BLOCK, BLOCKS = 48, 5, 6
CONFIG = ModelConfig(
    family="llama",
    vocab_size=40,
    hidden_size=64,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    context=LENGTH,
    longest_context=LENGTH,
    epsilon=1e-5,
    rope=Rope(theta=10000.0),
    tied=True,
)
ROTARY = torch.from_numpy(rotary_table(CONFIG.rope, CONFIG.head_dim, 0, 2 * LENGTH))


@pytest.fixture(params=[64, 0, None], ids=["groups", "tensor", "plain"])
def model(request: pytest.FixtureRequest) -> Decoder:
    torch.manual_seed(3)
    decoder = Decoder(CONFIG, request.param, masks=True)
    for parameter in decoder.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.1)
    return decoder


def random_rows(rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of two samples each, of which the first holds tokens that are not predicted."""
    ids = torch.randint(0, CONFIG.vocab_size, (rows, LENGTH))
    flags = torch.full((rows, LENGTH), TARGET, dtype=torch.uint8)
    flags[:, 0] |= STARTS
    flags[:, 20] |= STARTS
    flags[:, :7] &= ~TARGET
    return ids, flags


def draw(full: bool = False) -> tuple[torch.Tensor, Layout]:
    torch.manual_seed(5)
    ids, flags = random_rows()
    return ids, lay_out(ids, flags, BLOCK, BLOCKS, torch.Generator().manual_seed(1))


def hidden_of(model: Decoder, ids: torch.Tensor, layout: Layout, full: bool) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, layout.positions, build_mask(layout, full), ROTARY, torch.float32)


def window(
    model: Decoder, tokens: torch.Tensor, masks: int, start: int, full: bool
) -> torch.Tensor:
    """Hidden states of ``tokens`` and then masks, by an ordinary (or block-full) mask."""
    count = len(tokens) + masks
    positions = start + torch.arange(count).unsqueeze(0)
    sees = torch.ones(count, count).tril().bool()
    if full:
        sees[len(tokens) :, len(tokens) :] = True
    with torch.no_grad():
        return model(tokens.unsqueeze(0), positions, sees[None, None], ROTARY, torch.float32)[0]


def assert_same_rows(model: Decoder, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal up to rounding; a rounding that moves an int8 code moves a quantised row by more."""
    if model.quantised:
        assert (found - expected).abs().mean() < 0.02 * expected.abs().mean()
    else:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("full", [False, True])
def test_a_block_is_the_draft_window_of_its_anchor(model: Decoder, full: bool) -> None:
    ids, layout = draw()
    hidden = hidden_of(model, ids, layout, full)
    for row in range(len(ids)):
        for index, anchor in enumerate(layout.anchors[row].tolist()):
            begin = int(layout.begin[row, anchor])
            expected = window(model, ids[row, begin : anchor + 1], BLOCK - 1, begin, full)
            first = LENGTH + index * (BLOCK - 1)
            found = hidden[row, first : first + BLOCK - 1]
            assert_same_rows(model, found, expected[-(BLOCK - 1) :])
            assert_same_rows(model, hidden[row, anchor], expected[-BLOCK])


def test_clean_tokens_never_see_a_mask(model: Decoder) -> None:
    ids, layout = draw()
    _, flags = random_rows()
    alone = lay_out(ids, flags, BLOCK, 0, None)
    assert_same_rows(
        model, hidden_of(model, ids, layout, False)[:, :LENGTH], hidden_of(model, ids, alone, False)
    )


def test_targets_are_the_text_and_stay_within_a_sample() -> None:
    ids, layout = draw()
    _, flags = random_rows()
    predicted = 0
    for row in range(len(ids)):
        starts = [t for t in range(LENGTH) if flags[row, t] & STARTS]
        sample = [sum(t >= s for s in starts) for t in range(LENGTH)]
        for slot in range(layout.positions.shape[1]):
            at = int(layout.positions[row, slot]) + 1
            if slot < LENGTH:
                origin = slot
            else:
                block = int(layout.group[slot])
                origin = int(layout.anchors[row, block]) if block < BLOCKS else -1
            wanted = (
                origin >= 0
                and at < LENGTH
                and sample[at] == sample[origin]
                and bool(flags[row, at] & TARGET)
                and bool(flags[row, origin + 1] & TARGET)
            )
            assert bool(layout.weights[row, slot]) == wanted
            if wanted:
                predicted += 1
                assert layout.targets[row, slot] == ids[row, at]
    assert predicted > LENGTH


def test_anchors_precede_targets_and_differ() -> None:
    _, layout = draw()
    for row in layout.anchors.tolist():
        assert row == sorted(set(row))
        assert all(at >= 6 and at not in (19, LENGTH - 1) for at in row)


def test_padding_slots_see_themselves_alone() -> None:
    _, layout = draw()
    slots = layout.positions.shape[1]
    assert slots % 128 == 0
    sees = visibility(layout, True)
    index = torch.arange(slots)
    seen = sees(torch.tensor(0), torch.tensor(0), index.view(-1, 1), index.view(1, -1))
    used = LENGTH + BLOCKS * (BLOCK - 1)
    assert torch.equal(seen[used:], torch.eye(slots, dtype=torch.bool)[used:])


def test_block_sparse_attention_equals_the_dense_mask() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from bitmtp_edge.export.training.attention import attend

    _, layout = draw()
    rows, slots = layout.positions.shape
    torch.manual_seed(2)
    query = torch.randn(rows, 4, slots, 16)
    key, value = torch.randn(2, rows, 2, slots, 16)
    for full in (False, True):
        blocks = create_block_mask(visibility(layout, full), rows, None, slots, slots, device="cpu")
        sparse = flex_attention(query, key, value, block_mask=blocks, enable_gqa=True)
        dense = attend(query, key, value, build_mask(layout, full))
        torch.testing.assert_close(sparse, dense, rtol=1e-4, atol=1e-4)
