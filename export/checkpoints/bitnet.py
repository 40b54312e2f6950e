"""BitNet b1.58: a Llama layer with a norm on what the output and the down projection read."""

from __future__ import annotations

from . import llama
from .base import LayerTensors, ModelConfig, Stack


def layer(config: ModelConfig, index: int) -> LayerTensors:
    """A Llama layer's tensors, and the two sub-norms."""
    common = llama.layer(config, index)
    prefix = f"model.layers.{index}."
    attention = prefix + "self_attn.attn_sub_norm.weight"
    feed = prefix + "mlp.ffn_sub_norm.weight"
    return LayerTensors(
        common.linears,
        {
            **common.vectors,
            "attention_sub_norm": Stack(((attention, config.query_width),)),
            "mlp_sub_norm": Stack(((feed, config.intermediate_size),)),
        },
    )
