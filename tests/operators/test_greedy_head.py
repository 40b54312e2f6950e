"""GreedyHead: logits, top-k with ties, probabilities, slots in any order."""

from __future__ import annotations

import numpy as np
import pytest

from bitmtp_edge import layout

from . import oracle
from .harness import WIDTHS, Arrays, make_node, rng, run_kernel, run_reference, same_bits
from .weights import KINDS, Weight, random_weight

pytestmark = pytest.mark.usefixtures("library")

# Three blocks of 512, the last one short and odd.
ROWS = 1051
WIDTH = 200


def _attributes(kind: str, group_size: int, top_k: int, rows: int = ROWS) -> dict[str, int | str]:
    return {
        "kind": "dual" if kind in ("w4", "w8") else kind,
        "rows": rows,
        "width": WIDTH,
        "group_size": group_size,
        "top_k": top_k,
    }


def _logits(
    kind: str, codes: np.ndarray, act_scale: np.ndarray, weight: Weight, group_size: int
) -> tuple[np.ndarray, np.ndarray]:
    if kind != "fp16":
        return oracle.linear(codes, act_scale, weight.codes, weight.scales, group_size)
    terms = np.abs(codes) @ np.abs(weight.codes).T
    return codes @ weight.codes.T * act_scale[:, None], 1e-6 * terms * act_scale[:, None]


def _check(outputs: Arrays, logits: np.ndarray, bound: np.ndarray, label: str) -> None:
    """Against the oracle's logits of the chosen slots; the choice is exact for one's own logits."""
    ids = outputs["token_ids"]
    k = ids.shape[1]
    np.testing.assert_array_less(np.abs(outputs["logits"] - logits), bound + 1e-30, label)
    own = np.argsort(-outputs["logits"], axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, own, label)
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    want = np.take_along_axis(e, ids.astype(np.int64), 1) / e.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        outputs["probability"], want, oracle.PROBABILITY_BOUND, 1e-30, err_msg=label
    )


@pytest.mark.parametrize("kind, group_size", KINDS)
def test_top_k(kind: str, group_size: int) -> None:
    g = rng("head", kind, group_size)
    top_k = int(g.choice([1, 2, 5, 16]))
    scales = 10.0 ** g.uniform(-3, -2, (ROWS, layout.group_count(WIDTH, group_size)))
    weight = random_weight(g, kind, ROWS, WIDTH, group_size, scales)
    codes = g.integers(-127, 128, (33, WIDTH))
    # A spread of logits of some units, as a model has: from nearly uniform to nearly certain.
    raw = np.abs(_logits(kind, codes, np.ones(33), weight, group_size)[0]).max(axis=1)
    act_scale = (g.uniform(0.5, 20, 33) / raw).astype(np.float32)
    logits, bound = _logits(kind, codes, act_scale, weight, group_size)
    attributes = _attributes(kind, group_size, top_k)
    node = make_node("GreedyHead", attributes, (*weight.tensors, "logits"))
    bare = make_node("GreedyHead", attributes, tuple(weight.tensors))
    packed = layout.pack_activations(codes)
    for m in WIDTHS:
        h = int(g.integers(1, m + 1))
        slots = g.integers(0, m, h, dtype=np.int32)
        inputs = {"codes": packed[:m], "act_scale": act_scale[:m], "head_slots": slots}
        inputs |= weight.tensors
        body = run_reference(node, inputs, m, h)
        ours = run_kernel(node, inputs, m, h)
        _check(body, logits[slots], bound[slots], f"body, M={m}")
        _check(ours, logits[slots], bound[slots], f"ours, M={m}")
        if kind != "fp16" and weight.scales.shape[1] == 1:
            assert body["logits"].tobytes() == ours["logits"].tobytes()
        without = run_kernel(bare, inputs, m, h)
        assert same_bits(without, {p: x for p, x in ours.items() if p != "logits"}), m


@pytest.mark.parametrize("kind", ("fp16", "int8", "ternary", "w4", "w8"))
@pytest.mark.parametrize("different", (4, 150))
def test_ties_take_the_lowest_id(kind: str, different: int) -> None:
    """A few different rows only, so that every logit comes often: more than 16 times in each block
    of 512, or about twice in each, so that ties meet inside blocks and between them."""
    g = rng("ties", kind, different)
    few = random_weight(g, kind, different, WIDTH, 0, np.full((different, 1), 0.01))
    pattern = g.integers(0, different, ROWS)
    tensors = {}
    for port, x in few.tensors.items():
        if kind == "fp16":
            tensors[port] = x[pattern]
        elif port == "scales":
            tensors[port] = layout.pack_scales(layout.unpack_scales(x, different)[pattern])
        else:
            bits = 32 * x.shape[1] // layout.padded_width(WIDTH)
            tensors[port] = layout.pack_weight(
                layout.unpack_weight(x, different, WIDTH, bits)[pattern].astype(np.int32), bits
            )
    inputs = {
        "codes": layout.pack_activations(g.integers(-127, 128, (3, WIDTH))),
        "act_scale": np.full(3, 1e-3, np.float32),
        "head_slots": np.arange(3, dtype=np.int32),
        **tensors,
    }
    node = make_node("GreedyHead", _attributes(kind, 0, 16), (*tensors, "logits"))
    for outputs in (run_reference(node, inputs, 3, 3), run_kernel(node, inputs, 3, 3)):
        best = np.argsort(-outputs["logits"], axis=1, kind="stable")[:, :16]
        np.testing.assert_array_equal(outputs["token_ids"], best)
        for logits in outputs["logits"]:
            assert len(set(logits)) < ROWS  # there are ties


@pytest.mark.parametrize("kind", ("int8", "ternary", "w4", "w8"))
def test_padding_rows_never_win(kind: str) -> None:
    """All logits are negative; a padding row's would be 0."""
    g = rng("padding", kind)
    rows = 13
    weight = random_weight(g, kind, rows, WIDTH, 0, np.full((rows, 1), 0.01))
    sums = weight.codes.sum(axis=1)
    codes = np.repeat(-np.sign(sums[sums != 0])[:1], WIDTH)[None]
    logits = codes @ weight.values.T
    negative = logits[0] < 0
    assert negative.any()
    scales = layout.unpack_scales(weight.tensors["scales"], rows).copy()
    scales[~negative] *= -1  # turns the other rows' logits negative as well
    inputs = {
        "codes": layout.pack_activations(codes),
        "act_scale": np.ones(1, np.float32),
        "head_slots": np.zeros(1, np.int32),
        **weight.tensors,
        "scales": layout.pack_scales(scales),
    }
    node = make_node("GreedyHead", _attributes(kind, 0, 3, rows), tuple(weight.tensors))
    for outputs in (run_reference(node, inputs, 1), run_kernel(node, inputs, 1)):
        best = np.argsort(np.abs(logits[0]), kind="stable")[:3]
        np.testing.assert_array_equal(outputs["token_ids"][0], best)
