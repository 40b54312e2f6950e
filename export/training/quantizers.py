"""The quantisers of the forward pass, with straight-through gradients.

Each computes what the deployed operator computes (docs/numerics.md), so that what is trained is
what is exported; backward they are the identity.
"""

from __future__ import annotations

from torch import Tensor

SMALLEST = 1e-6  # keeps an all-zero group or token from dividing by zero


def ternary_codes(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """BitNet's absmean rule: codes {-1, 0, 1} and scales of a weight [N, K].

    Codes have the weight's shape and dtype; scales are [N, K / group_size], or [1] for group_size
    0. A scale is rounded to fp16, as it is stored.
    """
    if group_size == 0:
        scale = weight.abs().mean().clamp(min=SMALLEST).half().to(weight.dtype).reshape(1)
        return (weight / scale).round().clamp(-1, 1), scale
    groups = weight.unflatten(1, (-1, group_size))
    scale = groups.abs().mean(-1, keepdim=True).clamp(min=SMALLEST).half().to(weight.dtype)
    codes = (groups / scale).round().clamp(-1, 1)
    return codes.flatten(1), scale.squeeze(-1)


def ternary(weight: Tensor, group_size: int) -> Tensor:
    """The weight [N, K] that ternary storage keeps of ``weight``."""
    codes, scale = ternary_codes(weight, group_size)
    if group_size == 0:
        kept = codes * scale
    else:
        kept = (codes.unflatten(1, (-1, group_size)) * scale.unsqueeze(-1)).flatten(1)
    return weight + (kept - weight).detach()


def row_codes(table: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 rows: codes [V, K] in -127..127 and fp16-representable scales [V]."""
    scale = (table.abs().amax(-1, keepdim=True) / 127).clamp(min=SMALLEST).half().to(table.dtype)
    return (table / scale).round().clamp(-127, 127), scale.squeeze(-1)


def int8_rows(table: Tensor) -> Tensor:
    """The table [V, K] that int8 rows keep of ``table``."""
    codes, scale = row_codes(table)
    return table + (codes * scale.unsqueeze(-1) - table).detach()


def int8_activations(values: Tensor) -> tuple[Tensor, Tensor]:
    """Per-token absmax int8: integers [..., K] as bf16 (or the autocast dtype), exactly, and scales
    [..., 1], so that ``integers * scales`` is what the deployed product sees."""
    values = values.float()
    scale = (values.detach().abs().amax(-1, keepdim=True) / 127).clamp(min=SMALLEST)
    scaled = values / scale
    return scaled + (scaled.round() - scaled).detach(), scale
