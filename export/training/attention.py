"""Attention over a layout: block-sparse FlexAttention on a GPU, a dense mask elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .blocks import Layout

Mask = Any  # a FlexAttention BlockMask, or a bool tensor [b, 1, T, T]


def visibility(layout: Layout, full: bool) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Whether the slot q of row b sees the slot k, for index tensors that broadcast.

    ``full``: masks see every mask of their block, not only the earlier ones.
    """
    begin, limit, group, clean = layout.begin, layout.limit, layout.group, layout.clean

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        text = (k < clean) & (begin[b, q] <= k) & (k <= limit[b, q])
        own = (k >= clean) & (group[q] == group[k])
        return text | (own if full else own & (k <= q))

    return sees


def build_mask(layout: Layout, full: bool) -> Mask:
    """What :func:`attend` takes for ``layout``."""
    sees = visibility(layout, full)
    rows, slots = layout.positions.shape
    device = layout.positions.device
    if device.type == "cuda":
        return _create_block_mask()(sees, rows, None, slots, slots, device=device)
    row = torch.arange(rows, device=device).view(-1, 1, 1, 1)
    slot = torch.arange(slots, device=device)
    return sees(row, row, slot.view(1, 1, -1, 1), slot.view(1, 1, 1, -1))


@cache
def _create_block_mask() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import create_block_mask

    return torch.compile(create_block_mask)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """Softmax attention: query [b, heads, T, d] over key and value [b, kv_heads, T, d]."""
    if isinstance(mask, Tensor):
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=True
        )
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(query, key, value, block_mask=mask, enable_gqa=True)
