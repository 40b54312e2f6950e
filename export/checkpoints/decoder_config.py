"""Config keys that the decoder families share, with the spellings that checkpoints of several years
use.
"""

from __future__ import annotations

import math

from bitmtp_edge.errors import UserError

from .base import ModelConfig, RawConfig
from .rotary import KINDS, Rope


def read_decoder(raw: RawConfig, family: str) -> ModelConfig:
    """The :class:`ModelConfig` of a plain decoder with a silu gate. UserError names the key at
    fault.
    """
    raw.refuse("hidden_act", "silu")
    raw.refuse("quantization_config")
    raw.refuse("partial_rotary_factor", 1.0)
    heads, hidden = raw.integer("num_attention_heads"), raw.integer("hidden_size")
    kv_heads = raw.integer("num_key_value_heads", heads)
    # Missing or null head_dim means hidden/heads; where it is given the product may differ from the
    # hidden size.
    head_dim = raw.integer("head_dim", max(hidden // heads, 1))
    if heads % kv_heads:
        raise UserError(
            f"{raw.where}: {heads} attention heads are no multiple of {kv_heads} key-value heads"
        )
    if head_dim % 8:
        raise UserError(
            f"{raw.where}: head size {head_dim} is not supported (expected a multiple of 8)"
        )
    context = raw.integer("max_position_embeddings")
    rope = read_rope(raw, context, head_dim)
    return ModelConfig(
        family=family,
        vocab_size=raw.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=raw.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=raw.integer("intermediate_size"),
        context=context,
        # A llama3 scaling is part of the checkpoint; YaRN may be switched on afterwards.
        longest_context=(
            max(context, int(rope.original_context * rope.factor))
            if rope.kind == "yarn"
            else context
        ),
        epsilon=raw.number("rms_norm_eps", 1e-6),
        rope=rope,
        tied=raw.flag("tie_word_embeddings", False),
    )


def read_rope(raw: RawConfig, context: int, head_dim: int) -> Rope:
    """Rotary settings: ``rope_scaling`` (kind under ``rope_type``, or ``type`` in old files) or
    ``rope_parameters``, which also holds the base frequency. A missing base frequency is 10000, as
    it was when files had no such key.
    """
    block = raw.block("rope_parameters") or raw.block("rope_scaling")
    theta = raw.number("rope_theta", 10000.0)
    if block is not None:
        theta = block.number("rope_theta", theta)
    if theta <= 1:
        where = raw.where if block is None else block.where
        raise UserError(f"{where}: rope_theta is {theta}, expected more than 1")
    if block is None:
        return Rope(theta)
    kind = block.get("rope_type") or block.get("type") or "default"
    if kind not in KINDS:
        known = ", ".join(KINDS[:-1])
        raise UserError(f"{block.where}: rotary scaling {kind!r} is not supported (known: {known})")
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", block.number("factor"))
    if kind == "divisors":
        return Rope(theta, "divisors", divisors=_divisors(block, head_dim))
    original = block.integer("original_max_position_embeddings", context)
    factor = block.number("factor", context / original)
    if kind == "llama3":
        low, high = block.number("low_freq_factor"), block.number("high_freq_factor")
        if low >= high:
            raise UserError(
                f"{block.where}: low_freq_factor {low} must be below high_freq_factor {high}"
            )
        return Rope(theta, "llama3", factor, original, low, high)
    given = block.get("attention_factor")
    return Rope(
        theta,
        "yarn",
        factor,
        original,
        beta_fast=block.number("beta_fast", 32.0),
        beta_slow=block.number("beta_slow", 1.0),
        attention_factor=None if given is None else block.number("attention_factor"),
    )


def _divisors(block: RawConfig, head_dim: int) -> tuple[float, ...]:
    values = block.get("divisors")
    sound = isinstance(values, list) and all(type(v) is float and 0 < v < math.inf for v in values)
    if not sound or len(values) != head_dim // 2:
        raise UserError(
            f"{block.where}: expected {head_dim // 2} positive rotary divisors, one a frequency"
        )
    return tuple(values)
