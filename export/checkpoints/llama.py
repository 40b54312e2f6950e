"""Llama family: Llama 2 and 3, SmolLM2 and others of the same shape."""

from __future__ import annotations

from .base import Family, LayerTensors, ModelConfig, RawConfig, Stack
from .decoder_config import read_decoder


def read(raw: RawConfig) -> ModelConfig:
    """Config of a Llama-shaped model. Biases are refused: the linear operators have none."""
    raw.refuse("attention_bias", False)
    raw.refuse("mlp_bias", False)
    return read_decoder(raw, "llama")


def layer(config: ModelConfig, index: int) -> LayerTensors:
    """Projections and norms of one layer."""
    prefix = f"model.layers.{index}."
    hidden, query, kv = config.hidden_size, config.query_width, config.kv_width
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    return LayerTensors(
        linears={
            "qkv": Stack(
                (
                    (attention + "q_proj.weight", query),
                    (attention + "k_proj.weight", kv),
                    (attention + "v_proj.weight", kv),
                ),
                hidden,
            ),
            "o": Stack(((attention + "o_proj.weight", hidden),), query),
            "gate_up": Stack(
                (
                    (mlp + "gate_proj.weight", config.intermediate_size),
                    (mlp + "up_proj.weight", config.intermediate_size),
                ),
                hidden,
            ),
            "down": Stack(((mlp + "down_proj.weight", hidden),), config.intermediate_size),
        },
        vectors={
            "attention_norm": Stack(((prefix + "input_layernorm.weight", hidden),)),
            "mlp_norm": Stack(((prefix + "post_attention_layernorm.weight", hidden),)),
        },
    )


FAMILIES = (Family("llama", "LlamaForCausalLM", read, layer, gguf_interleaves_rotary=True),)
