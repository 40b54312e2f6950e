"""The network that is trained: a Llama-shaped decoder whose products see what deployment keeps.

With ``group_size`` None nothing is quantised: that is the teacher.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..checkpoints.base import ModelConfig
from .attention import Mask, attend
from .quantizers import int8_activations, int8_rows, ternary


class Product(nn.Module):
    """The weight [N, K] of a linear layer without bias."""

    def __init__(self, width: int, rows: int, group_size: int | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        self.group_size = group_size

    def kept(self) -> Tensor:
        """What deployment keeps of the weight."""
        return self.weight if self.group_size is None else ternary(self.weight, self.group_size)


def multiply(values: Tensor, products: Sequence[Product], dtype: torch.dtype) -> Tensor:
    """values [..., K] by the weights of ``products`` one below the other: [..., N] in ``dtype``.

    W2A8 with a straight-through gradient, or plain where the products are not quantised.
    """
    weight = torch.cat([product.kept().to(dtype) for product in products])
    if products[0].group_size is None:
        return nn.functional.linear(values.to(dtype), weight)
    integers, scale = int8_activations(values)
    return nn.functional.linear(integers.to(dtype), weight) * scale.to(dtype)


class Layer(nn.Module):
    """Attention and gated feed-forward, each behind an RMSNorm, on an fp32 residual stream."""

    def __init__(self, config: ModelConfig, group_size: int | None) -> None:
        super().__init__()
        hidden, self.config = config.hidden_size, config
        self.attention_norm = nn.Parameter(torch.ones(hidden))
        self.mlp_norm = nn.Parameter(torch.ones(hidden))
        if config.qk_norm:
            self.q_norm = nn.Parameter(torch.ones(config.head_dim))
            self.k_norm = nn.Parameter(torch.ones(config.head_dim))
        self.qkv = nn.ModuleList(
            Product(hidden, rows, group_size)
            for rows in (config.query_width, config.kv_width, config.kv_width)
        )
        self.o = Product(config.query_width, hidden, group_size)
        self.gate = Product(hidden, config.intermediate_size, group_size)
        self.up = Product(hidden, config.intermediate_size, group_size)
        self.down = Product(config.intermediate_size, hidden, group_size)

    def forward(
        self, hidden: Tensor, cosine: Tensor, sine: Tensor, mask: Mask, dtype: torch.dtype
    ) -> Tensor:
        """hidden: fp32 [b, T, K]. cosine, sine: [b, 1, T, d/2]."""
        config = self.config
        normed = rms_norm(hidden, self.attention_norm, config.epsilon)
        fused = multiply(normed, list(self.qkv), dtype)
        widths = [config.query_width, config.kv_width, config.kv_width]
        query, key, value = (
            part.unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
            for part in fused.split(widths, -1)
        )
        if config.qk_norm:
            query = rms_norm(query, self.q_norm, config.epsilon).to(dtype)
            key = rms_norm(key, self.k_norm, config.epsilon).to(dtype)
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        attended = attend(query, key, value, mask).transpose(1, 2).flatten(2)
        hidden = hidden + multiply(attended, [self.o], dtype).float()
        normed = rms_norm(hidden, self.mlp_norm, config.epsilon)
        gate, up = multiply(normed, [self.gate, self.up], dtype).float().chunk(2, -1)
        gated = nn.functional.silu(gate) * up
        return hidden + multiply(gated, [self.down], dtype).float()


class Decoder(nn.Module):
    """Embedding, layers, final norm and head. ``mask_embedding`` [1, K] stands for mask slots."""

    def __init__(self, config: ModelConfig, group_size: int | None, masks: bool) -> None:
        super().__init__()
        self.config = config
        self.quantised = group_size is not None
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.mask_embedding = nn.Parameter(torch.empty(1, config.hidden_size)) if masks else None
        self.layers = nn.ModuleList(Layer(config, group_size) for _ in range(config.num_layers))
        self.final_norm = nn.Parameter(torch.ones(config.hidden_size))
        self.head = (
            None
            if config.tied
            else nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        )

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Mask, rotary: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Hidden states fp32 [b, T, K] behind the final norm.

        ids: int64 [b, L]; the T - L slots after them are masks. positions: int64 [b, T]. rotary:
        fp32 [P, d], cosines and then sines of every position.
        """
        table = int8_rows(self.embedding) if self.quantised else self.embedding
        hidden = nn.functional.embedding(ids, table).float()
        slots = positions.shape[1] - ids.shape[1]
        if slots:
            assert self.mask_embedding is not None
            masks = self.mask_embedding.float().expand(ids.shape[0], slots, -1)
            hidden = torch.cat([hidden, masks], 1)
        cosine, sine = rotary[positions].unsqueeze(1).to(dtype).chunk(2, -1)
        for layer in self.layers:
            hidden = layer(hidden, cosine, sine, mask, dtype)
        return rms_norm(hidden, self.final_norm, self.config.epsilon)

    def logits(self, hidden: Tensor, dtype: torch.dtype) -> Tensor:
        """Logits [..., V] in ``dtype`` of hidden states [..., K]."""
        table = self.embedding if self.head is None else self.head
        if not self.quantised:
            return nn.functional.linear(hidden.to(dtype), table.to(dtype))
        integers, scale = int8_activations(hidden)
        product = nn.functional.linear(integers.to(dtype), int8_rows(table).to(dtype))
        return product * scale.to(dtype)


def rms_norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm over the last axis in fp32."""
    values = values.float()
    return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + epsilon) * weight.float()


def rotate(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding, the halves of a head as pairs: values [b, heads, T, d]."""
    first, second = values.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
