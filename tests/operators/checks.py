"""What the bounds of docs/numerics.md mean for arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge import layout

from .harness import Arrays
from .oracle import CODE_BOUND, HIDDEN_BOUND

Array = NDArray[Any]


def assert_quantised(
    outputs: Arrays, scale_port: str, before: Array, scale: Array, rows: slice, label: str
) -> None:
    """Codes and scales are those of the values ``before`` rounding, or the code next to a half.

    Two engines that both keep this differ by at most 1, and only beside a half.
    """
    width = before.shape[1]
    every = layout.unpack_activations(outputs["codes"], layout.padded_width(width))
    assert not every[:, width:].any(), f"{label}: padding columns are not 0"
    off = np.abs(every[:, :width] - before[rows]).max()
    assert off <= CODE_BOUND, f"{label}: a code is {off} from its value"
    np.testing.assert_allclose(outputs[scale_port], scale[rows], rtol=HIDDEN_BOUND, err_msg=label)
