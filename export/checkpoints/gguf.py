"""GGUF checkpoints: metadata and tensor names brought to the Hugging Face spelling, quantised rows
to float32.
"""

from __future__ import annotations

import math
import os
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.errors import UserError, missing_extra

from .base import EMBEDDING, FINAL_NORM, HEAD, Checkpoint, RawConfig
from .families import find_family
from .gguf_file import GgufHeader, TensorInfo, read_header

if TYPE_CHECKING:
    from .text_assets import TextAssets

_TOP_NAMES = {
    EMBEDDING: "token_embd.weight",
    HEAD: "output.weight",
    FINAL_NORM: "output_norm.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_ROTARY_ROWS = re.compile(r"self_attn\.([qk])_proj\.")
_CONFIG_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
_SCALING_KEYS = {
    "type": "rope_type",
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
_TYPE_SUFFIX = re.compile(r"[.-]I?Q\d\w*$|[.-]B?F(16|32)$", re.IGNORECASE)
ROPE_DIVISORS = "rope_freqs.weight"


class GgufCheckpoint(Checkpoint):
    """A GGUF file. UserError for a damaged file, an unknown architecture or a tensor type that
    cannot be read.
    """

    def __init__(self, path: Path) -> None:
        try:
            from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
        except ImportError:
            raise missing_extra("gguf", "export") from None
        self._types, self._sizes, self._quants = GGMLQuantizationType, GGML_QUANT_SIZES, quants
        self.where = str(path)
        self.name = _TYPE_SUFFIX.sub("", path.stem)
        self._file = path.open("rb")
        try:
            self._header: GgufHeader = read_header(self._file, path)
            self._check_extents()
            self.family = find_family(
                str(self._header.metadata.get("general.architecture")), self.where
            )
            self.config = self.family.read(self._raw_config())
            rotated = f"{self.family.name}.rope.dimension_count"
            RawConfig(self._header.metadata, self.where).refuse(rotated, self.config.head_dim)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    @cached_property
    def text(self) -> TextAssets:
        from .gguf_tokenizer import text_assets

        return text_assets(self._header.metadata)

    def shape(self, name: str) -> tuple[int, ...] | None:
        info = self._header.tensors.get(self._stored_name(name))
        return info.shape if info else None

    def tensor_rows(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        if not self._is_interleaved(name):
            return self._read(name, first, last)
        head = self.config.head_dim
        low, high = first // head * head, -(-last // head) * head
        rows = _half_split(self._read(name, low, high), head)
        return rows[first - low : last - low]

    def vector(self, name: str) -> NDArray[np.float32]:
        values = self._read(name, 0, 1)
        return _half_split(values, self.config.head_dim) if self._is_interleaved(name) else values

    def _is_interleaved(self, name: str) -> bool:
        return self.family.gguf_interleaves_rotary and bool(_ROTARY_ROWS.search(name))

    def _stored_name(self, name: str) -> str:
        if name in _TOP_NAMES:
            return _TOP_NAMES[name]
        match = _LAYER_NAME.fullmatch(name)
        if match and match[2] in _LAYER_NAMES:
            return f"blk.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
        return name

    def _row_bytes(self, name: str, info: TensorInfo) -> int:
        """Bytes of a row (a vector is one row). UserError for an unknown type or a width its blocks
        do not divide.
        """
        try:
            kind = self._types(info.type_id)
        except ValueError:
            raise UserError(
                f"{self.where}: tensor {name} has unknown GGUF type {info.type_id}"
            ) from None
        block, size = self._sizes[kind]
        if info.shape[-1] % block:
            raise UserError(
                f"{self.where}: tensor {name}: {info.shape[-1]} columns do not fill {kind.name} "
                f"blocks of {block}"
            )
        return int(info.shape[-1] // block * size)

    def _check_extents(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        for name, info in self._header.tensors.items():
            end = info.offset + math.prod(info.shape[:-1]) * self._row_bytes(name, info)
            if end > size:
                raise UserError(
                    f"{self.where}: truncated: tensor {name} ends at byte {end}, the file has "
                    f"{size}; download it again"
                )

    def _read(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        stored = self._stored_name(name)
        info = self._header.tensors[stored]
        row_bytes = self._row_bytes(stored, info)
        self._file.seek(info.offset + first * row_bytes)
        data = np.frombuffer(self._file.read((last - first) * row_bytes), np.uint8)
        if data.size != (last - first) * row_bytes:
            raise UserError(
                f"{self.where}: could not read tensor {stored}: the file became shorter"
            )
        try:
            values = self._quants.dequantize(
                data.reshape(last - first, row_bytes), self._types(info.type_id)
            )
        except NotImplementedError:
            kind = self._types(info.type_id).name
            raise UserError(
                f"{self.where}: tensor {stored}: GGUF type {kind} cannot be dequantised"
            ) from None
        return np.asarray(values, np.float32).reshape(
            (last - first, -1) if len(info.shape) > 1 else -1
        )

    def _raw_config(self) -> RawConfig:
        """The metadata under Hugging Face config keys."""
        metadata, name = self._header.metadata, self.family.name

        def find(key: str) -> Any:
            return metadata.get(f"{name}.{key}")

        values = {ours: find(theirs) for theirs, ours in _CONFIG_KEYS.items()}
        embedding = self._header.tensors.get(_TOP_NAMES[EMBEDDING])
        if embedding is None:
            raise UserError(
                f"{self.where}: tensor {_TOP_NAMES[EMBEDDING]} is missing; is this a language "
                "model?"
            )
        values["vocab_size"] = embedding.shape[0]
        values["tie_word_embeddings"] = _TOP_NAMES[HEAD] not in self._header.tensors
        # llama.cpp multiplies YaRN's own factor by it.
        RawConfig(metadata, self.where).refuse(f"{name}.rope.scaling.attn_factor", 1.0)
        scaling = {ours: find(f"rope.scaling.{theirs}") for theirs, ours in _SCALING_KEYS.items()}
        if ROPE_DIVISORS in self._header.tensors:
            scaling = {
                "rope_type": "divisors",
                "divisors": self._read(ROPE_DIVISORS, 0, 1).tolist(),
            }
        elif scaling["rope_type"] in (None, "none"):
            scaling = {}
        values["rope_scaling"] = scaling
        return RawConfig(values, self.where)


def _half_split(rows: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Whole heads from paired order (0, D/2, 1, D/2+1, ...) to half-split order (0, 1, ...)."""
    pairs = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
