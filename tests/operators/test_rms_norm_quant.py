"""RmsNormQuant against the oracle, and in equal bits where no sum is rounded."""

from __future__ import annotations

import numpy as np
import pytest

from . import oracle
from .checks import assert_quantised
from .harness import make_node, rng, same_bits, sweep_rows

pytestmark = pytest.mark.usefixtures("library")


@pytest.mark.parametrize("width", (1, 63, 200, 576, 2048))
@pytest.mark.parametrize("epsilon", (1e-5, 1e-6))
def test_random_rows(width: int, epsilon: float) -> None:
    g = rng("norm", width, epsilon)
    size = 10.0 ** g.uniform(-6, 4, (33, 1))
    hidden = (g.normal(size=(33, width)) * size).astype(np.float32)
    hidden[g.integers(33)] = 0
    weight = g.normal(size=width).astype(np.float32)
    node = make_node("RmsNormQuant", {"width": width, "epsilon": epsilon}, ())
    before, scale = oracle.quantise(oracle.rms_norm(hidden, weight, epsilon))
    inputs = {"hidden": hidden, "weight": weight}
    for rows, body, ours in sweep_rows(node, inputs, ("hidden",), g):
        for label, outputs in (("body", body), ("ours", ours)):
            assert_quantised(outputs, "act_scale", before, scale, rows, label)


# The CUDA kernel multiplies by the weight before it knows the factor: one rounding is another.
@pytest.mark.parametrize("library", ["cpu"], indirect=True)
def test_equal_bits_where_the_sum_is_exact(library: str) -> None:
    g = rng("norm, exact")
    hidden = g.integers(-64, 65, (33, 256)).astype(np.float32)
    weight = g.normal(size=256).astype(np.float32)
    node = make_node("RmsNormQuant", {"width": 256, "epsilon": 1e-5}, ())
    inputs = {"hidden": hidden, "weight": weight}
    for rows, body, ours in sweep_rows(node, inputs, ("hidden",), g):
        assert same_bits(body, ours), rows
