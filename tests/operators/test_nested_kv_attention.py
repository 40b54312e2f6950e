"""NestedKVAttention: head sizes, query groups, KV kinds, options, window forms, chunk edges."""

from __future__ import annotations

import numpy as np
import pytest

from .attention_case import Shape, assert_attention, random_qkv, window_shape
from .harness import WIDTHS, rng, run_kernel, run_reference

pytestmark = pytest.mark.usefixtures("library")

ALL_NORMS = ("qkv_bias", "q_norm", "k_norm", "sub_norm")

SHAPES = (
    Shape(3, 3, 64, "nested"),
    Shape(4, 2, 64, "nested", ("kv4_length",)),
    Shape(9, 3, 64, "nested", ("kv4_length", "sub_norm")),
    Shape(4, 1, 128, "nested", ("kv4_length", *ALL_NORMS)),
    Shape(5, 1, 128, "nested", ("qkv_bias",)),
    Shape(2, 2, 128, "fp16", ("q_norm", "k_norm")),
    Shape(4, 2, 64, "fp16"),
    Shape(5, 1, 64, "fp16", ALL_NORMS),
)

# Around the edges of a chunk, of two, and of a segment: a capacity of 0 spare rows, or some.
HISTORIES = ((0, 7), (1, 1), (5, 64), (127, 128), (128, 128), (129, 200), (255, 256), (256, 512))
FORMS = ("causal", "tree", "padded")


def _name(shape: Shape) -> str:
    return "-".join((f"{shape.heads}q{shape.kv_heads}kv{shape.dim}", shape.kv, *shape.options))


@pytest.mark.parametrize("shape", SHAPES, ids=_name)
def test_windows(shape: Shape) -> None:
    g = rng("attention", shape)
    node = shape.node()
    parameters = shape.parameters(g, 300)
    for m in WIDTHS:
        for index in g.permutation(len(HISTORIES))[:3]:
            start, capacity = HISTORIES[index]
            form = str(g.choice(FORMS))
            positions, mask = window_shape(g, form, m, start)
            inputs = {
                "qkv": random_qkv(g, shape, m),
                "positions": positions,
                "mask": mask,
                "history_length": np.array([start], np.int32),
                **parameters,
                **shape.history(g, capacity, start),
            }
            if "kv4_length" in shape.options:
                view = int(g.choice([0, start // 2, start, capacity + 5]))
                inputs["kv4_length"] = np.array([view], np.int32)
            label = f"{form} window, M={m}, history {start} of {capacity}"
            body = run_reference(node, inputs, m)
            ours = run_kernel(node, inputs, m)
            assert_attention(shape, inputs, body, f"body, {label}")
            assert_attention(shape, inputs, ours, f"ours, {label}")
            if "k_norm" not in shape.options:
                # Up to the stored rows every operation is one rounding.
                for port in ("new_rows", "new_refinement", "new_scale"):
                    if port in body:
                        assert body[port].tobytes() == ours[port].tobytes(), f"{port}, {label}"


@pytest.mark.parametrize("kv", ("nested", "fp16"))
def test_a_row_with_itself_alone_returns_its_value(kv: str) -> None:
    """Softmax over one key is 1: integer V rows come back in codes of 127."""
    shape = Shape(4, 2, 64, kv)
    g = rng("alone", kv)
    value = g.integers(-7, 8, (3, 2, 64)).astype(np.float32)
    value[..., 0] = 7
    q_and_k = g.normal(size=(3, 6, 64)).astype(np.float32)
    inputs = {
        "qkv": np.concatenate([q_and_k, value], axis=1).reshape(3, -1),
        "positions": np.zeros(3, np.int32),
        "mask": np.array([[1], [2], [4]], np.int32),
        "history_length": np.zeros(1, np.int32),
        **shape.parameters(g, 4),
        **shape.history(g, 4, 0),
    }
    want = np.rint(np.repeat(value, 2, axis=1).reshape(3, -1) * np.float32(127 / 7))
    for outputs in (
        run_reference(shape.node(), inputs, 3),
        run_kernel(shape.node(), inputs, 3),
    ):
        np.testing.assert_array_equal(outputs["codes"].view(np.int8), want)
