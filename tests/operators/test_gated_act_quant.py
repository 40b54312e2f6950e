"""GatedActQuant against the oracle, and in equal bits where nothing but products is rounded."""

from __future__ import annotations

import numpy as np
import pytest

from . import oracle
from .checks import assert_quantised
from .harness import make_node, rng, same_bits, sweep_rows

pytestmark = pytest.mark.usefixtures("library")


@pytest.mark.parametrize("sub_norm", (False, True))
@pytest.mark.parametrize("activation", ("silu", "relu2"))
@pytest.mark.parametrize("width", (63, 200, 1536))
def test_random_rows(width: int, activation: str, sub_norm: bool) -> None:
    g = rng("gate", width, activation, sub_norm)
    # Rows up to a size whose square overflows fp16, and gates beyond the range of exp.
    size = 10.0 ** g.uniform(-3, 3, (33, 1))
    gate_up = (g.normal(size=(33, 2 * width)) * size).astype(np.float32)
    inputs = {"gate_up": gate_up}
    y = oracle.gate(gate_up, activation)
    if sub_norm:
        inputs["sub_norm"] = g.normal(size=width).astype(np.float32)
        y = oracle.rms_norm(y, inputs["sub_norm"], 1e-5)
    before, scale = oracle.quantise(y)
    attributes = {"width": width, "activation": activation, "epsilon": 1e-5}
    node = make_node("GatedActQuant", attributes, tuple(inputs))
    for rows, body, ours in sweep_rows(node, inputs, ("gate_up",), g):
        for label, outputs in (("body", body), ("ours", ours)):
            assert_quantised(outputs, "act_scale", before, scale, rows, label)
        if activation == "relu2" and not sub_norm:
            assert same_bits(body, ours), rows
