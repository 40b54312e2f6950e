"""Rotary embedding: inverse frequencies under the published scalings, and the table the operators
read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

KINDS = ("default", "linear", "llama3", "yarn", "divisors")


@dataclass(frozen=True)
class Rope:
    """Base frequency and scaling.

    kind: "default"; "linear" (positions divided by ``factor``); "llama3" (long wavelengths divided
    by ``factor``, those between the two bounds blended); "yarn" (a ramp between the two, and an
    attention factor); "divisors" (one divisor a frequency). original_context: positions before
    scaling (llama3, yarn). attention_factor: None takes YaRN's own 0.1 ln(factor) + 1.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    divisors: tuple[float, ...] = ()


def inverse_frequencies(rope: Rope, head_dim: int) -> NDArray[np.float64]:
    """Angle a position, float64 [head_dim/2]."""
    base = _base_frequencies(rope.theta, head_dim)
    if rope.kind == "linear":
        return base / rope.factor
    if rope.kind == "divisors":
        return base / np.asarray(rope.divisors, np.float64)
    if rope.kind == "llama3":
        turns = rope.original_context * base / (2 * math.pi)
        keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        keep = np.clip(keep, 0.0, 1.0)
        return base * keep + base / rope.factor * (1 - keep)
    if rope.kind == "yarn":
        keep = 1 - _yarn_ramp(rope, head_dim)
        return base * keep + base / rope.factor * (1 - keep)
    return base


def _base_frequencies(theta: float, head_dim: int) -> NDArray[np.float64]:
    """theta ** -(2i / head_dim), correctly rounded: a power of NumPy or libm may be off by its last
    bit, differently on other machines, and at high positions the table shows it.
    """
    with localcontext() as context:
        context.prec = 40
        powers = [Decimal(theta) ** (-Decimal(i) / head_dim) for i in range(0, head_dim, 2)]
    return np.array([float(power) for power in powers])


def _yarn_ramp(rope: Rope, head_dim: int) -> NDArray[np.float64]:
    """0 for frequencies that turn ``beta_fast`` times or more in the original context, 1 below
    ``beta_slow``.
    """

    def dimension(turns: float) -> float:
        ratio = rope.original_context / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(rope.theta))

    low = max(math.floor(dimension(rope.beta_fast)), 0)
    high = min(math.ceil(dimension(rope.beta_slow)), head_dim - 1)
    ramp = (np.arange(head_dim // 2) - low) / max(high - low, 0.001)
    return np.asarray(np.clip(ramp, 0.0, 1.0), np.float64)


def attention_factor(rope: Rope) -> float:
    """Factor on cosine and sine (YaRN; 1 elsewhere): with it on both q and k, scores grow by its
    square.
    """
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0


def rotary_table(rope: Rope, head_dim: int, first: int, last: int) -> NDArray[np.float32]:
    """Rows of positions ``first`` to ``last - 1``, float32 [last - first, head_dim]: cosines, then
    sines.

    Computed in float64 and rounded once; NaN where the settings lead to no finite angle.
    """
    positions = np.arange(first, last, dtype=np.float64)
    angles = np.outer(positions, inverse_frequencies(rope, head_dim))
    flat = np.where(np.isfinite(angles), angles, np.nan).ravel().tolist()
    # One by one in libm, within 0.6 of the last bit everywhere: NumPy's own are good to a few, by
    # the machine's vector instructions.
    waves = [np.fromiter(map(wave, flat), np.float64, len(flat)) for wave in (math.cos, math.sin)]
    table = np.concatenate([wave.reshape(angles.shape) for wave in waves], axis=1)
    return np.asarray(table * attention_factor(rope), np.float32)
