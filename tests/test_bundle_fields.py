"""Fields and tensors of bundle.json that no bundle may have: one line for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.bundle import BUNDLE_FILE

from .damage import Edit, drop, edit, put, refusal

HUGE = 10**30
TENSOR = ("tensors", "embedding.base")
VERIFY = ("graphs", "verify")

FIELDS: list[tuple[Edit, str]] = [
    (drop("model", "name"), "model: field 'name' is missing"),
    (put("model", "colour", value=1), "model: unknown field 'colour'"),
    (put("colour", value=1), "unknown field 'colour'"),
    (put("model", value=[]), "model: expected an object, found a list"),
    (put("model", "name", value=3), "model.name: expected str, found the number 3"),
    (put("model", "name", value="\ud800"), "is not valid Unicode"),
    (put("model", "vocab_size", value="301"), "model.vocab_size: expected int, found a string"),
    (put("model", "vocab_size", value=True), "model.vocab_size: expected int, found a boolean"),
    (put("model", "vocab_size", value=301.0), "expected int, found the number 301.0"),
    (put("model", "tied_embeddings", value=1), "model.tied_embeddings: expected bool"),
    (put("replay", "segments", value=512), "replay.segments: expected a list"),
    (put("replay", "segments", value=[512, None]), "replay.segments[1]: expected int, found null"),
    (put("decoding", "kv4_from_segment", value="x"), "expected int or NoneType, found a string"),
    (put("tensors", value=[]), "tensors: expected an object"),
    (put(*VERIFY, value={}), "graphs['verify']: expected a list"),
    (put(*VERIFY, 0, "attributes", "rows", value=[]), "expected int or float or str"),
    (drop("graphs", "draft"), "graphs: expected draft and verify"),
    (put("graphs", "third", value=[]), "graphs: expected draft and verify"),
]
FIELDS += [
    (put("model", name, value=value), f"model.{name} is {value}, expected 1")
    for name in ("vocab_size", "num_layers", "num_kv_heads", "head_dim", "context")
    for value in (0, -1, 2**31, HUGE)
]
FIELDS += [
    (put("replay", name, value=value), f"replay.{name} is")
    for name in ("segments", "draft_widths", "verify_widths")
    for value in ([], [0], [-1, 1], [2, 1], [1, 1], [1, 2**31], [HUGE])
]
FIELDS += [
    (put("replay", "verify_widths", value=[2, 4]), "lacks width 1"),
    (put("decoding", "stop_ids", value=[2, 301]), "decoding.stop_ids: 301 is outside"),
    (put("decoding", "stop_ids", value=[-1]), "decoding.stop_ids: -1 is outside"),
    (put("decoding", "bos_id", value=HUGE), "decoding.bos_id: 1"),
    (put("decoding", "gamma", value=0), "decoding.gamma is 0"),
    (put("decoding", "recent_n", value=-1), "decoding.recent_n is -1"),
    (put("decoding", "kv4_from_segment", value=0), "decoding.kv4_from_segment is 0"),
    (put("decoding", "policy", value="magic"), "decoding.policy is 'magic', expected one of ar"),
    (put("decoding", "policy", value="hybrid"), "decoding.policy is 'hybrid'"),
    (put("decoding", "gamma", value=None), "decoding.policy is 'nested'"),
    (put("decoding", "block", value=4), "decoding.block is 4, but the model has 0 mask"),
    (put("decoding", "tau", value=0.5), "decoding.tau is 0.5, but the model has 0 mask"),
    (put("model", "mask_embeddings", value=-1), "model.mask_embeddings is -1, expected 0"),
    (put("model", "mask_embeddings", value=1), "decoding.block is null, but the model has 1 mask"),
    (put("model", "block_attention", value="none"), "model.block_attention is 'none', expected"),
]


def masked(block: Any = 4, tau: Any = 0.9, min_prefix: Any = 2, masks: int = 1) -> Edit:
    """A bundle that says it has trained masks, without the tensor."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["model"]["mask_embeddings"] = masks
        manifest["decoding"] |= {"block": block, "tau": tau, "min_prefix": min_prefix}

    return change


FIELDS += [
    (masked(block=1), "decoding.block is 1, expected 2 or more"),
    (masked(block=5, masks=3), "decoding.block is 5, expected 2 or more, and a mask embedding"),
    (masked(tau=0.0), "decoding.tau is 0.0, expected above 0"),
    (masked(tau=1.5), "decoding.tau is 1.5, expected above 0"),
    (masked(tau=float("nan")), "decoding.tau is nan, expected above 0"),
    (masked(min_prefix=0), "decoding.min_prefix is 0, expected 1 .. 4"),
    (masked(min_prefix=5), "decoding.min_prefix is 5, expected 1 .. 4"),
    (masked(tau=None), "decoding.tau is null, but the model has 1 mask"),
    (masked(), "tensors['mask_embeddings'] is missing, expected float32[1, 128]"),
    (masked(masks=3), "tensors['mask_embeddings'] is missing, expected float32[3, 128]"),
]

TENSORS: list[tuple[Edit, str]] = [
    (put(*TENSOR, "dtype", value="int8"), "dtype 'int8', expected one of int32"),
    (put(*TENSOR, "dtype", value="object"), "dtype 'object'"),
    (put(*TENSOR, "shape", value=[]), "shape [], expected 1 to 3 axes"),
    (put(*TENSOR, "shape", value=[1] * 70), "expected 1 to 3 axes"),
    (put(*TENSOR, "shape", value=[38, 0, 8]), "none empty"),
    (put(*TENSOR, "shape", value=[-38, -16, 8]), "none empty"),
    (put(*TENSOR, "shape", value=[HUGE, HUGE, HUGE]), "do not hold int32"),
    (put(*TENSOR, "shape", value=[38, 16, 9]), "do not hold int32"),
    (put(*TENSOR, "bytes", value=4), "4 bytes do not hold"),
    (put(*TENSOR, "offset", value=-256), "offset -256 is unaligned or past the end"),
    (put(*TENSOR, "offset", value=4), "offset 4 is unaligned or past the end"),
    (put(*TENSOR, "offset", value=HUGE - HUGE % 256), "unaligned or past the end"),
]


def test_a_tensor_past_the_end(bundle_copy: Path) -> None:
    size = (bundle_copy / "weights.bin").stat().st_size
    edit(bundle_copy, put(*TENSOR, "offset", value=size // 256 * 256))
    assert "past the end of weights.bin" in refusal(bundle_copy)


@pytest.mark.parametrize(
    ("change", "words"), FIELDS + TENSORS, ids=[w for _, w in FIELDS + TENSORS]
)
def test_fields(bundle_copy: Path, change: Edit, words: str) -> None:
    line = refusal(edit(bundle_copy, change))
    assert words in line
    assert line.startswith(f"{bundle_copy / BUNDLE_FILE}: ") or f"{BUNDLE_FILE}." in line
