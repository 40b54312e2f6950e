"""Published models by their sizes: what ``bench --synthetic`` makes bundles of.

A new one is an entry of :data:`SHAPES`. Its facts are those of the model's own config.json and of
how its weights were published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bitmtp_edge.errors import UserError

from .checkpoints import bitnet, llama, qwen
from .checkpoints.base import LayerTensors, ModelConfig
from .checkpoints.rotary import Rope
from .checkpoints.ternary import CodeFormat


@dataclass(frozen=True)
class Shape:
    """A model without weights.

    layer: (config, layer index) -> its tensors. linears: how its projections are packed. tables:
    how its embedding and its head are. block: tokens of the draft blocks that its masks would be
    trained for; None of a model that drafts on its base plane.
    """

    config: ModelConfig
    layer: Callable[[ModelConfig, int], LayerTensors]
    linears: CodeFormat
    tables: CodeFormat
    block: int | None

    @property
    def parameters(self) -> int:
        """Weights of all tensors; a tied head counts once."""
        config = self.config
        stacks = []
        for index in range(config.num_layers):
            found = self.layer(config, index)
            stacks += [*found.linears.values(), *found.vectors.values()]
        tables = (1 if config.tied else 2) * config.vocab_size * config.hidden_size
        return sum(s.rows * max(s.width, 1) for s in stacks) + tables + config.hidden_size


_TERNARY_128 = CodeFormat("ternary", 128)
_DUAL_128 = CodeFormat("dual", 128)
_BLOCK = 8  # BitMTP's larger D

SHAPES: dict[str, Shape] = {
    # microsoft/bitnet-b1.58-2B-4T. One ternary scale a tensor; the embedding, which is the head
    # too, is published in bf16 and stored in int8 rows here.
    "bitnet-2b": Shape(
        ModelConfig(
            family="bitnet",
            vocab_size=128256,
            hidden_size=2560,
            num_layers=30,
            num_heads=20,
            num_kv_heads=5,
            head_dim=128,
            intermediate_size=6912,
            context=4096,
            longest_context=4096,
            epsilon=1e-5,
            rope=Rope(500000.0),
            tied=True,
            activation="relu2",
        ),
        bitnet.layer,
        CodeFormat("ternary", 0),
        CodeFormat("int8", 0),
        _BLOCK,
    ),
    # prism-ml/Ternary-Bonsai-1.7B, trained from Qwen3-1.7B; everything but the norms is ternary.
    "bonsai-1.7b": Shape(
        ModelConfig(
            family="qwen3",
            vocab_size=151669,
            hidden_size=2048,
            num_layers=28,
            num_heads=16,
            num_kv_heads=8,
            head_dim=128,
            intermediate_size=6144,
            context=32768,
            longest_context=32768,
            epsilon=1e-6,
            rope=Rope(1000000.0, "yarn", factor=4.0, original_context=8192),
            tied=True,
            qk_norm=True,
        ),
        qwen.layer,
        _TERNARY_128,
        _TERNARY_128,
        _BLOCK,
    ),
    # prism-ml/Ternary-Bonsai-4B, trained from Qwen3-4B. Vocabulary and rotary settings are taken to
    # be those of the 1.7B; the published file has as many bytes.
    "bonsai-4b": Shape(
        ModelConfig(
            family="qwen3",
            vocab_size=151669,
            hidden_size=2560,
            num_layers=36,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            intermediate_size=9728,
            context=32768,
            longest_context=32768,
            epsilon=1e-6,
            rope=Rope(1000000.0, "yarn", factor=4.0, original_context=8192),
            tied=True,
            qk_norm=True,
        ),
        qwen.layer,
        _TERNARY_128,
        _TERNARY_128,
        _BLOCK,
    ),
    # meta-llama/Llama-2-7b-hf, as BitNest would nest it.
    "llama-2-7b": Shape(
        ModelConfig(
            family="llama",
            vocab_size=32000,
            hidden_size=4096,
            num_layers=32,
            num_heads=32,
            num_kv_heads=32,
            head_dim=128,
            intermediate_size=11008,
            context=4096,
            longest_context=4096,
            epsilon=1e-5,
            rope=Rope(10000.0),
            tied=False,
        ),
        llama.layer,
        _DUAL_128,
        _DUAL_128,
        None,
    ),
}


def shape_of(name: str) -> Shape:
    """The shape ``name``. UserError for a name that is none."""
    shape = SHAPES.get(name)
    if shape is None:
        raise UserError(f"no shape {name!r}: choose {' or '.join(SHAPES)}")
    return shape
