"""TokenEmbedding: every operation rounds once, so all engines and float64 rounded once agree."""

from __future__ import annotations

import numpy as np
import pytest

from .harness import make_node, rng, sweep_rows
from .weights import KINDS, random_weight

pytestmark = pytest.mark.usefixtures("library")

ROWS = 37
MASKS = 5


@pytest.mark.parametrize("kind, group_size", KINDS)
@pytest.mark.parametrize("width", (200, 576))
def test_rows_of_the_table_and_of_the_masks(kind: str, group_size: int, width: int) -> None:
    g = rng("embedding", kind, group_size, width)
    weight = random_weight(g, kind, ROWS, width, group_size)
    masks = g.normal(size=(MASKS, width)).astype(np.float32)
    attributes = {
        "kind": "dual" if kind in ("w4", "w8") else kind,
        "rows": ROWS,
        "width": width,
        "group_size": group_size,
    }
    node = make_node("TokenEmbedding", attributes, (*weight.tensors, "mask_embeddings"))
    bare = make_node("TokenEmbedding", attributes, tuple(weight.tensors))

    ids = g.integers(-MASKS, ROWS, 33, dtype=np.int32)
    nothing = [ROWS, -MASKS - 1, 2**31 - 1, -(2**31)]
    ids[g.permutation(33)[:8]] = [0, ROWS - 1, -1, -MASKS, *nothing]
    values = weight.values.astype(np.float32)
    want = np.zeros((33, width), np.float32)
    for row, token in enumerate(ids):
        if 0 <= token < ROWS:
            want[row] = values[token]
        elif -MASKS <= token < 0:
            want[row] = masks[-1 - token]

    inputs = {"token_ids": ids, **weight.tensors}
    for rows, body, ours in sweep_rows(
        node, {**inputs, "mask_embeddings": masks}, ("token_ids",), g
    ):
        np.testing.assert_array_equal(body["hidden"], want[rows])
        np.testing.assert_array_equal(ours["hidden"], want[rows])
    want[ids < 0] = 0
    for rows, body, ours in sweep_rows(bare, inputs, ("token_ids",), g):
        np.testing.assert_array_equal(body["hidden"], want[rows])
        np.testing.assert_array_equal(ours["hidden"], want[rows])
