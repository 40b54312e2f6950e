"""On a GPU: a plugin of every signature has the bits of the CUDA library, whose records are filled
by another hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bitmtp_edge.operators import OPERATORS

from ..operators.attention_case import window_shape
from ..operators.cuda_call import run_cuda
from ..operators.harness import outputs_like, rng, same_bits
from ..operators.plugin_call import run_plugin
from .conformance import Session
from .signatures import CAPACITY, MASKS, Signature, of_operator

pytestmark = pytest.mark.gpu

WINDOWS = ((1, 1), (5, 3), (40, 7))  # M, h


def drawn(g: np.random.Generator, signature: Signature, m: int, h: int) -> dict[str, Any]:
    """Random tensors, those that name rows within their range."""
    length = int(g.integers(0, CAPACITY - m))
    positions, mask = window_shape(g, "tree", m, length)
    named = {
        "token_ids": g.integers(-MASKS, 200, m),
        "head_slots": g.integers(0, m, h),
        "positions": positions,
        "mask": mask,
        "history_length": [length],
        "kv4_length": [int(g.integers(0, length + 1))],
    }
    made: dict[str, NDArray[Any]] = {}
    for port, (dtype, shape) in zip(signature.inputs, signature.input_specs(m, h), strict=True):
        if port.name in named:
            made[port.name] = np.array(named[port.name], np.int32).reshape(shape)
        elif dtype == "int32":
            made[port.name] = g.integers(-(2**31), 2**31, shape).astype(np.int32)
        else:
            made[port.name] = g.normal(size=shape).astype(dtype)
    return made


@pytest.mark.parametrize("op", OPERATORS)
def test_bits_of_the_cuda_library(session: Session, op: str) -> None:
    for i, signature in enumerate(of_operator(op)):
        m, h = WINDOWS[i % len(WINDOWS)]
        inputs = drawn(rng(op, i), signature, m, h)
        outputs = outputs_like(signature.node, m, h)
        ours = run_plugin(signature.node, inputs, outputs, captured=False)
        want = run_cuda(signature.node, inputs, outputs, m, h)
        assert same_bits(ours, want), (str(signature), m, h)
        written = [x.tobytes() != outputs[port].tobytes() for port, x in ours.items()]
        assert all(written), (str(signature), m, h)
