"""The trained ternary checkpoint: what its file holds, what writing and reading refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.checkpoints import open_checkpoint
from bitmtp_edge.export.checkpoints.base import Stack
from bitmtp_edge.export.checkpoints.ternary import MultiToken, TernaryCheckpoint
from bitmtp_edge.export.checkpoints.ternary_folder import (
    pack_ternary,
    unpack_ternary,
    write_ternary_checkpoint,
)
from bitmtp_edge.export.pipeline import export_bundle

from .tiny_models import Tiny, config, ternary_tensors, tiny_ternary, tokenizer_json, write_folder

WEIGHTS = "model.safetensors"
EMBEDDING = "model.embed_tokens.weight"
MASKS = "model.mask_embeddings.weight"
NORM = "model.layers.1.input_layernorm.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"  # [128, 192]
SCALE = f"{DOWN}_scale"


@pytest.mark.parametrize("codes", [[[0, 1, -1, 1]], [[1] * 8, [-1] * 8, [0] * 8]])
def test_packing(codes: list[list[int]]) -> None:
    values = np.array(codes, np.int8)
    packed = pack_ternary(values)
    assert packed.dtype == np.uint8
    assert packed[0, 0] == sum((code + 1) << 2 * i for i, code in enumerate(codes[0][:4]))
    assert np.array_equal(unpack_ternary(packed), values)


@pytest.mark.parametrize("codes", [[[0, 1, -1]], [[2, 0, 0, 0]], [[-128, 0, 0, 0]]])
def test_what_cannot_be_packed(codes: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="no ternary codes"):
        pack_ternary(np.array(codes, np.int8))


@pytest.mark.parametrize("group_size", [0, 64, 128])
def test_codes_and_their_fp32_view(group_size: int, tmp_path: Path) -> None:
    """Blocks cross the parts of a fused projection, each under its own scales."""
    tiny = tiny_ternary(tmp_path / "m", group_size=group_size, masks=3)
    prefix = "model.layers.0.self_attn."
    parts = tuple(
        (f"{prefix}{x}_proj.weight", rows) for x, rows in zip("qkv", (256, 128, 128), strict=True)
    )
    stack = Stack(parts, 128)
    expected = np.concatenate([tiny.tensors[name] for name, _ in parts])
    with open_checkpoint(tiny.path) as checkpoint:
        assert isinstance(checkpoint, TernaryCheckpoint)
        assert checkpoint.multi_token == MultiToken(4, "causal", 3)
        found = np.concatenate([rows for _, rows in checkpoint.blocks(stack, 200)])
        assert np.array_equal(found, expected) and found.dtype == np.float32
        for first, (codes, scales) in checkpoint.code_blocks(stack, 200):
            assert codes.dtype == np.int8 and scales.dtype == np.float16
            steps = np.repeat(scales.astype(np.float32), group_size or 128, axis=1)[:, :128]
            assert np.array_equal(codes * steps, expected[first : first + 200])
        assert np.array_equal(checkpoint.tensor_rows(MASKS, 1, 3), tiny.tensors[MASKS][1:])


# ---- writing -----------------------------------------------------------------------------------


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tiny_ternary(tmp_path / "a"), tiny_ternary(tmp_path / "b")
    names = ["config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in first.path.iterdir()) == names
    for name in names:
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_an_existing_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(UserError, match="exists: choose another name"):
        tiny_ternary(tmp_path / "m")
    assert not list((tmp_path / "m").iterdir())


def test_what_export_would_refuse_is_not_written(tmp_path: Path) -> None:
    values = config() | {"quantization_config": {"quant_method": "bitmtp-ternary", "group_size": 0}}
    stored, _ = ternary_tensors(values, masks=0)
    texts = {"tokenizer.json": tokenizer_json()}
    stored[SCALE] = stored[SCALE].astype(np.float32)
    with pytest.raises(UserError, match=r"down_proj.weight_scale is F32\[1\], expected F16\[1\]"):
        write_ternary_checkpoint(tmp_path / "m", values, stored, texts)
    with pytest.raises(UserError, match="quant_method must be 'bitmtp-ternary'"):
        write_ternary_checkpoint(tmp_path / "m", config(), stored, texts)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_ternary_checkpoint(tmp_path / "file" / "m", values, stored, texts)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# ---- reading -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Tiny:
    return tiny_ternary(tmp_path / "model")


def _refused(source: Path, message: str) -> None:
    target = source.with_name("target")
    with pytest.raises(UserError, match=message) as caught:
        export_bundle(source, target)
    assert "\n" not in str(caught.value)
    assert [path.name for path in target.parent.iterdir()] == ["model"]


def _change(tiny: Tiny, change: Callable[[dict[str, Any]], object]) -> None:
    stored = load_file(tiny.path / WEIGHTS)
    change(stored)
    save_file(
        {name: np.ascontiguousarray(value) for name, value in stored.items()}, tiny.path / WEIGHTS
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (DOWN, None, f"tensor {DOWN} is missing"),
        (SCALE, None, f"tensor {SCALE} is missing"),
        (MASKS, None, f"tensor {MASKS} is missing"),
        (EMBEDDING, None, f"tensor {EMBEDDING} is missing"),
        (f"{EMBEDDING}_scale", None, f"tensor {EMBEDDING}_scale is missing"),
        (NORM, None, f"tensor {NORM} is missing"),
        (DOWN, np.zeros((128, 192), np.int8), r"is I8\[128, 192\], expected U8\[128, 48\]"),
        (DOWN, np.zeros((128, 48), np.float16), r"is F16\[128, 48\], expected U8\[128, 48\]"),
        (DOWN, np.zeros((32, 192), np.uint8), r"is U8\[32, 192\], expected U8\[128, 48\]"),
        (SCALE, np.ones((128, 3), np.float32), r"is F32\[128, 3\], expected F16\[128, 3\]"),
        (SCALE, np.ones((128, 2), np.float16), r"is F16\[128, 2\], expected F16\[128, 3\]"),
        (SCALE, np.ones(1, np.float16), r"is F16\[1\], expected F16\[128, 3\]"),
        (EMBEDDING, np.zeros((301, 128), np.float16), r"is F16\[301, 128\], expected I8"),
        (EMBEDDING, np.zeros((300, 128), np.int8), r"is I8\[300, 128\], expected I8\[301, 128\]"),
        (f"{EMBEDDING}_scale", np.ones((301, 1), np.float16), r"expected F16\[301\]"),
        (MASKS, np.zeros((1, 128), np.float16), r"is F16\[1, 128\], expected F32\[1, 128\]"),
        (MASKS, np.zeros((1, 64), np.float32), r"is F32\[1, 64\], expected F32\[1, 128\]"),
        (MASKS, np.zeros((2, 128), np.float32), "has 2 rows, expected 1 or one for each of the 3"),
        (MASKS, np.zeros((0, 128), np.float32), "has 0 rows, expected 1 or one for each of the 3"),
        (MASKS, np.full((1, 128), np.nan, np.float32), f"{MASKS} holds values that are not finite"),
        (NORM, np.zeros(128, np.int8), f"{NORM} has dtype I8; only F32, F16, BF16 can be read"),
        (NORM, np.full(128, np.inf, np.float32), f"{NORM} holds values that are not finite"),
    ],
)
def test_a_tensor_that_does_not_fit(name: str, value: Any, message: str, folder: Tiny) -> None:
    _change(folder, lambda s: s.pop(name) if value is None else s.update({name: value}))
    _refused(folder.path, message)


def test_bits_that_are_no_code(folder: Tiny) -> None:
    def damage(stored: dict[str, Any]) -> None:
        stored[DOWN][77, 5] |= 0b110000

    _change(folder, damage)
    _refused(folder.path, f"tensor {DOWN} holds the bits 3 in row 77")


@pytest.mark.parametrize("name", [SCALE, f"{EMBEDDING}_scale"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scales_that_are_not_finite(name: str, value: float, folder: Tiny) -> None:
    def damage(stored: dict[str, Any]) -> None:
        stored[name].flat[-1] = value

    _change(folder, damage)
    _refused(folder.path, f"tensor {name} holds values that are not finite")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization_config": {"quant_method": "bitmtp-ternary"}}, "group_size is None"),
        (
            {"quantization_config": {"quant_method": "bitmtp-ternary", "group_size": 32}},
            r"group_size is 32, expected one of 0, 64, 128 \(0: one scale a tensor\)",
        ),
        (
            {"quantization_config": {"quant_method": "bitmtp-ternary", "group_size": False}},
            "group_size is False",
        ),
        (
            {"quantization_config": {"quant_method": "bitmtp-ternary", "group_size": 128}},
            r"q_proj.weight_scale is F16\[256, 2\], expected F16\[256, 1\]",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is .*gptq"),
        ({"quantization_config": "ternary"}, "quantization_config must be a block of values"),
        ({"bitmtp": {"block_attention": "causal"}}, "block must be a positive integer"),
        ({"bitmtp": {"block": 1, "block_attention": "causal"}}, "block is 1, expected 2 to 64"),
        ({"bitmtp": {"block": 65, "block_attention": "causal"}}, "block is 65, expected 2 to 64"),
        ({"bitmtp": {"block": 4}}, "block_attention is None, expected 'causal' or 'full'"),
        ({"bitmtp": {"block": 4, "block_attention": "wild"}}, "block_attention is 'wild'"),
        ({"bitmtp": [4]}, "bitmtp must be a block of values"),
        ({"tie_word_embeddings": False}, r"tensor lm_head\.weight is missing"),
        ({"vocab_size": 302}, r"is I8\[301, 128\], expected I8\[302, 128\]"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"intermediate_size": 190}, "has rows of 190 ternary codes, expected a multiple of 4"),
    ],
)
def test_a_config_that_does_not_fit(changes: dict[str, Any], message: str, folder: Tiny) -> None:
    if "intermediate_size" in changes:  # the gate would be refused before the width is
        _change(
            folder,
            lambda stored: stored.update(
                {
                    f"model.layers.{i}.mlp.{name}_proj.weight{suffix}": value
                    for i in range(2)
                    for name in ("gate", "up")
                    for suffix, value in (
                        ("", np.zeros((190, 32), np.uint8)),
                        ("_scale", np.ones((190, 2), np.float16)),
                    )
                }
            ),
        )
    (folder.path / "config.json").write_text(json.dumps(folder.config | changes))
    _refused(folder.path, message)


def test_the_weights_asked_for_must_be_the_checkpoints(folder: Tiny, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds ternary codes: .* --weights ternary, not nested"):
        export_bundle(folder.path, tmp_path / "target", weights="nested")
    dense = write_folder(tmp_path / "dense")
    with pytest.raises(UserError, match=r"holds no ternary codes: .* nested, not ternary"):
        export_bundle(dense.path, tmp_path / "target", weights="ternary")
    bundle = export_bundle(folder.path, tmp_path / "target", weights="ternary")
    assert bundle.model.weights == "ternary"
