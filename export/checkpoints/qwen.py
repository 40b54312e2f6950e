"""Qwen2 and Qwen2.5 (biased q, k and v) and Qwen3 (a norm on every q and k head)."""

from __future__ import annotations

from dataclasses import replace

from . import llama
from .base import Family, LayerTensors, ModelConfig, RawConfig, Stack
from .decoder_config import read_decoder


def read_qwen2(raw: RawConfig) -> ModelConfig:
    """Config of a Qwen2 model; the bias has no key of its own there."""
    raw.refuse("use_sliding_window", False)
    return replace(read_decoder(raw, "qwen2"), qkv_bias=True)


def read_qwen3(raw: RawConfig) -> ModelConfig:
    """Config of a Qwen3 model; ``attention_bias`` there would mean a bias on the output projection
    too.
    """
    raw.refuse("use_sliding_window", False)
    raw.refuse("attention_bias", False)
    return replace(read_decoder(raw, "qwen3"), qk_norm=True)


def layer(config: ModelConfig, index: int) -> LayerTensors:
    """A Llama layer's tensors, and what Qwen adds."""
    common = llama.layer(config, index)
    attention = f"model.layers.{index}.self_attn."
    vectors = dict(common.vectors)
    if config.qkv_bias:
        vectors["qkv_bias"] = Stack(
            (
                (attention + "q_proj.bias", config.query_width),
                (attention + "k_proj.bias", config.kv_width),
                (attention + "v_proj.bias", config.kv_width),
            )
        )
    if config.qk_norm:
        vectors["q_norm"] = Stack(((attention + "q_norm.weight", config.head_dim),))
        vectors["k_norm"] = Stack(((attention + "k_norm.weight", config.head_dim),))
    return LayerTensors(common.linears, vectors)


FAMILIES = (
    Family("qwen2", "Qwen2ForCausalLM", read_qwen2, layer),
    Family("qwen3", "Qwen3ForCausalLM", read_qwen3, layer),
)
