"""The C ABI of the operators: the mirror of plugins/include/bitmtp/abi.h, for both libraries.

Records have the field order of abi.h and hold plain addresses. Whoever fills one keeps the memory
behind it alive.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

VERSION = 3

FP16, INT8, TERNARY, DUAL = range(4)
(
    TOKEN_EMBEDDING,
    RMS_NORM_QUANT,
    TERNARY_LINEAR,
    DUAL_PLANE_LINEAR,
    NESTED_KV_ATTENTION,
    GATED_ACT_QUANT,
    GREEDY_HEAD,
) = range(7)
KV_FP16, KV_NESTED = range(2)
SILU, RELU2 = range(2)

STAGE_TOKENS = 64  # of a prefix


class Weight(ctypes.Structure):
    _fields_ = (
        ("table", c_void_p),
        ("refinement", c_void_p),
        ("scales", c_void_p),
        ("kind", c_int32),
        ("rows", c_int32),
        ("width", c_int32),
        ("group_size", c_int32),
    )


class TokenEmbeddingArgs(ctypes.Structure):
    _fields_ = (
        ("token_ids", c_void_p),
        ("mask_embeddings", c_void_p),
        ("weight", Weight),
        ("hidden", c_void_p),
        ("M", c_int32),
        ("P", c_int32),
    )


class RmsNormQuantArgs(ctypes.Structure):
    _fields_ = (
        ("hidden", c_void_p),
        ("weight", c_void_p),
        ("codes", c_void_p),
        ("scale", c_void_p),
        ("epsilon", c_float),
        ("M", c_int32),
        ("K", c_int32),
    )


class LinearArgs(ctypes.Structure):
    _fields_ = (
        ("codes", c_void_p),
        ("act_scale", c_void_p),
        ("weight", Weight),
        ("residual", c_void_p),
        ("out", c_void_p),
        ("M", c_int32),
    )


class NestedKVAttentionArgs(ctypes.Structure):
    _fields_ = (
        ("qkv", c_void_p),
        ("positions", c_void_p),
        ("mask", c_void_p),
        ("history_length", c_void_p),
        ("kv4_length", c_void_p),
        ("rotary", c_void_p),
        ("history", c_void_p),
        ("history_refinement", c_void_p),
        ("history_scale", c_void_p),
        ("qkv_bias", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("sub_norm", c_void_p),
        ("codes", c_void_p),
        ("scale", c_void_p),
        ("new_rows", c_void_p),
        ("new_refinement", c_void_p),
        ("new_scale", c_void_p),
        ("workspace", c_void_p),
        ("softmax_scale", c_float),
        ("epsilon", c_float),
        ("M", c_int32),
        ("H", c_int32),
        ("Hkv", c_int32),
        ("D", c_int32),
        ("capacity", c_int32),
        ("rotary_rows", c_int32),
        ("kv_kind", c_int32),
    )


class GatedActQuantArgs(ctypes.Structure):
    _fields_ = (
        ("gate_up", c_void_p),
        ("sub_norm", c_void_p),
        ("codes", c_void_p),
        ("scale", c_void_p),
        ("epsilon", c_float),
        ("M", c_int32),
        ("F", c_int32),
        ("activation", c_int32),
    )


class GreedyHeadArgs(ctypes.Structure):
    _fields_ = (
        ("codes", c_void_p),
        ("act_scale", c_void_p),
        ("head_slots", c_void_p),
        ("weight", Weight),
        ("token_ids", c_void_p),
        ("probability", c_void_p),
        ("logits", c_void_p),
        ("workspace", c_void_p),
        ("M", c_int32),
        ("h", c_int32),
        ("top_k", c_int32),
    )


class KVPlane(ctypes.Structure):
    _fields_ = (("base", c_void_p), ("row_bytes", c_int64))


class StageArgs(ctypes.Structure):
    _fields_ = (
        ("prefix", c_void_p),
        ("outputs", c_void_p),
        ("output_rows", c_void_p),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("mask", c_void_p),
        ("head_slots", c_void_p),
        ("history_length", c_void_p),
        ("kv4_length", c_void_p),
        ("history", c_int32),
        ("kv4_history", c_int32),
        ("prefix_rows", c_int32),
        ("output_count", c_int32),
        ("top_k", c_int32),
        ("M", c_int32),
        ("h", c_int32),
        ("heads", c_int32),
        ("two_way", c_int32),
    )
