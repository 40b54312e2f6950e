"""A window of tokens and masks through the network that is trained."""

from __future__ import annotations

import torch

from bitmtp_edge.export.checkpoints.rotary import rotary_table
from bitmtp_edge.export.training.model import Decoder


def window_logits(model: Decoder, tokens: list[int], masks: int = 0) -> torch.Tensor:
    """Logits [tokens + masks, V] in fp32, every slot seeing those before it and itself."""
    count = len(tokens) + masks
    rotary = torch.from_numpy(rotary_table(model.config.rope, model.config.head_dim, 0, count))
    causal = torch.ones(1, 1, count, count).tril().bool()
    with torch.no_grad():
        hidden = model(
            torch.tensor([tokens]), torch.arange(count)[None], causal, rotary, torch.float32
        )
        return model.logits(hidden, torch.float32)[0]
