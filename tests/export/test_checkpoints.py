"""Checkpoints: the same rows from every format, and configs as they are found in the world."""

from __future__ import annotations

import json
import math
import shutil
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.checkpoints import open_checkpoint
from bitmtp_edge.export.checkpoints.base import ModelConfig, RawConfig, Stack
from bitmtp_edge.export.checkpoints.families import find_family, known_families
from bitmtp_edge.export.checkpoints.rotary import Rope, inverse_frequencies, rotary_table

from . import tiny_models
from .tiny_models import HEAD_DIM, HEADS, Floats, Tiny, write_folder, write_gguf

FAMILIES = ["llama", "qwen2", "qwen3"]


def _assert_equal_tensors(tiny: Tiny) -> None:
    with open_checkpoint(tiny.path) as checkpoint:
        for name, expected in tiny.tensors.items():
            assert checkpoint.shape(name) == expected.shape, name
            if expected.ndim == 1:
                found = checkpoint.vector(name)
            else:
                # Blocks that cut heads in two.
                edges = [*range(0, len(expected), 24), len(expected)]
                pairs = pairwise(edges)
                found = np.concatenate([checkpoint.tensor_rows(name, a, b) for a, b in pairs])
            assert found.dtype == np.float32
            assert np.array_equal(found, expected), name
        assert checkpoint.shape("model.layers.0.self_attn.nothing.weight") is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_folder_rows(family: str, dtype: str, tmp_path: Path) -> None:
    _assert_equal_tensors(write_folder(tmp_path / "m", family, dtype=dtype))


@pytest.mark.parametrize("shards", [2, 5])
def test_sharded_folder_rows(shards: int, tmp_path: Path) -> None:
    tiny = write_folder(tmp_path / "m", shards=shards, tie_word_embeddings=False)
    _assert_equal_tensors(tiny)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["Q8_0", "F16", "BF16", "F32"])
def test_gguf_rows(family: str, kind: str, tmp_path: Path) -> None:
    _assert_equal_tensors(write_gguf(tmp_path / "m.gguf", family, kind=kind))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_gguf_rows_of_lossy_types(kind: str, tmp_path: Path) -> None:
    tiny = write_gguf(tmp_path / "m.gguf", "qwen2", kind=kind)
    step = 127 * 2.0**-10 / (7 if "4" in kind else 15)
    with open_checkpoint(tiny.path) as checkpoint:
        for name, expected in tiny.tensors.items():
            if expected.ndim == 2:
                found = checkpoint.tensor_rows(name, 0, len(expected))
                assert 0 < np.abs(found - expected).max() < 1.5 * step


def test_gguf_rotary_rows_attend_as_the_file_means_them(tiny_gguf: Tiny) -> None:
    """llama.cpp rotates neighbouring pairs of the stored rows; our operators rotate halves of the
    rows as they are read. Scores must be the same."""
    random = np.random.default_rng(1)
    hidden = tiny_gguf.config["hidden_size"]
    states = random.standard_normal((2, hidden))
    table = rotary_table(Rope(10000.0), HEAD_DIM, 0, 40).astype(np.float64)
    cos, sin = np.split(table[[3, 37]], 2, axis=1)

    def pairs(x: np.ndarray[Any, Any], row: int) -> np.ndarray[Any, Any]:
        x = x.reshape(-1, HEAD_DIM // 2, 2)
        turned = (x[..., 0] + 1j * x[..., 1]) * (cos[row] + 1j * sin[row])
        return np.stack([turned.real, turned.imag], -1).reshape(-1, HEAD_DIM)

    def halves(x: np.ndarray[Any, Any], row: int) -> np.ndarray[Any, Any]:
        a, b = np.split(x.reshape(-1, HEAD_DIM), 2, axis=1)
        return np.concatenate(
            [a * cos[row] - b * sin[row], b * cos[row] + a * sin[row]],
            axis=1,
        )

    names = [f"model.layers.0.self_attn.{x}_proj.weight" for x in "qk"]
    scores = []
    with open_checkpoint(tiny_gguf.path) as checkpoint:
        read = [checkpoint.tensor_rows(name, 0, tiny_gguf.tensors[name].shape[0]) for name in names]
    stored = [_stored_rows(tiny_gguf.path, tiny_models.gguf_name(name)) for name in names]
    for (query, key), rotate in ((stored, pairs), (read, halves)):
        q, k = rotate(query @ states[0], 0), rotate(key @ states[1], 1)
        scores.append((q * np.repeat(k, HEADS // len(k), axis=0)).sum(1))
    assert np.allclose(scores[0], scores[1])
    assert not np.array_equal(stored[0], read[0])


def _stored_rows(path: Path, name: str) -> Floats:
    import gguf

    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == name)
    return np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type))


def test_blocks_run_across_the_parts_of_a_stack(tiny_llama: Tiny) -> None:
    names = [f"model.layers.1.self_attn.{x}_proj.weight" for x in "qkv"]
    parts = tuple((name, len(tiny_llama.tensors[name])) for name in names)
    whole = np.concatenate([tiny_llama.tensors[name] for name in names])
    with open_checkpoint(tiny_llama.path) as checkpoint:
        for block_rows in (8, 40, 72, 1000):
            blocks = list(checkpoint.blocks(Stack(parts, 128), block_rows))
            assert [first for first, _ in blocks] == list(range(0, len(whole), block_rows))
            assert np.array_equal(np.concatenate([block for _, block in blocks]), whole)


def test_text_comes_with_the_checkpoint(tiny_llama: Tiny, tiny_gguf: Tiny) -> None:
    for tiny in (tiny_llama, tiny_gguf):
        with open_checkpoint(tiny.path) as checkpoint:
            assert json.loads(checkpoint.text.tokenizer_json)["model"]["type"] == "BPE"
            assert checkpoint.text.chat_template == tiny_models.TEMPLATE
            assert checkpoint.text.stop_ids[0] == 2


# ---- configs ----------------------------------------------------------------------------------


def _read(family: str, **changes: Any) -> ModelConfig:
    raw = RawConfig(tiny_models.config(family, **changes), "config.json")
    return find_family(family, "config.json").read(raw)


def test_families_are_found() -> None:
    assert [family.name for family in known_families()] == FAMILIES


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("rope_theta", None, Rope(10000.0)),
        ("rope_scaling", {"type": "linear", "factor": 8.0}, Rope(10000.0, "linear", 8.0)),
        ("rope_scaling", {"rope_type": "default"}, Rope(10000.0)),
        (
            "rope_scaling",
            {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
            Rope(10000.0, "llama3", 32.0, 256, 1.0, 4.0),
        ),
        (
            "rope_parameters",
            {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 256,
            },
            Rope(1e6, "yarn", 4.0, 256),
        ),
        (
            "rope_scaling",
            {"type": "yarn", "original_max_position_embeddings": 512},
            Rope(10000.0, "yarn", 2.0, 512),
        ),
    ],
)
def test_rotary_settings(key: str, value: object, expected: Rope) -> None:
    assert _read("llama", **{key: value}).rope == expected


def test_yarn_stretches_the_context() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    config = _read("qwen2", rope_scaling=scaling)
    assert (config.context, config.longest_context) == (1024, 4096)
    scaling |= {"type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert _read("llama", rope_scaling=scaling).longest_context == 1024


def test_sizes_that_follow_from_others() -> None:
    config = _read("llama", head_dim=None, num_key_value_heads=None, hidden_size=256)
    assert (config.head_dim, config.num_kv_heads) == (64, 4)
    config = _read("qwen3", head_dim=128)
    assert config.query_width == 512 and config.hidden_size == 128
    assert config.qk_norm and not config.qkv_bias
    assert _read("qwen2").qkv_bias
    assert not _read("llama", tie_word_embeddings=None).tied


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "factor must be a positive number; it is missing"),
        ({"rope_scaling": "linear"}, "rope_scaling must be a block"),
        ({"rope_scaling": {"type": "divisors"}}, "expected 32 positive rotary divisors"),
        ({"rope_scaling": {"type": "yarn", "rope_theta": 1.0}}, "rope_theta is 1"),
        ({"rope_scaling": {"type": ["yarn"]}}, "is not supported"),
        ({"hidden_size": "128"}, "hidden_size must be a positive integer; found '128'"),
        ({"num_hidden_layers": None}, "num_hidden_layers must be .* it is missing"),
        ({"num_key_value_heads": 3}, "4 attention heads are no multiple of 3"),
        ({"head_dim": 36}, "head size 36"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"num_attention_heads": True}, "num_attention_heads"),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        _read("llama", **changes)


def test_a_sliding_window_is_refused() -> None:
    for family in ("qwen2", "qwen3"):
        with pytest.raises(UserError, match="use_sliding_window"):
            _read(family, use_sliding_window=True)


def test_an_unknown_architecture_names_the_known_ones(tmp_path: Path) -> None:
    tiny = write_folder(tmp_path / "m", model_type="gpt_neox", architectures=["GPTNeoXForCausalLM"])
    with pytest.raises(UserError, match=r"'gpt_neox' .*known: llama, qwen2, qwen3"):
        open_checkpoint(tiny.path)
    # Some BitNet checkpoints call themselves llama.
    with pytest.raises(UserError, match="BitnetForCausalLM"):
        find_family("llama", "config.json", "BitnetForCausalLM")


def test_gguf_rotary_scaling(tmp_path: Path) -> None:
    for name, scaling, expected in (
        ("linear", {"type": "linear", "factor": 4.0}, Rope(10000.0, "linear", 4.0)),
        ("none", {"type": "none"}, Rope(10000.0)),
    ):
        tiny = write_gguf(tmp_path / f"{name}.gguf", scaling=scaling)
        with open_checkpoint(tiny.path) as checkpoint:
            assert checkpoint.config.rope == expected
    tiny = write_gguf(tmp_path / "a.gguf", scaling={"type": "yarn", "attn_factor": 0.5})
    with pytest.raises(UserError, match=r"attn_factor is 0\.5"):
        open_checkpoint(tiny.path)
    tiny = write_gguf(tmp_path / "b.gguf", extra={"rope_freqs.weight": np.ones(5, np.float32)})
    with pytest.raises(UserError, match="expected 32 positive rotary divisors"):
        open_checkpoint(tiny.path)
    divisors = np.linspace(1, 8, HEAD_DIM // 2, dtype=np.float32)
    tiny = write_gguf(tmp_path / "divisors.gguf", extra={"rope_freqs.weight": divisors})
    with open_checkpoint(tiny.path) as checkpoint:
        found = inverse_frequencies(checkpoint.config.rope, HEAD_DIM)
    plain = inverse_frequencies(Rope(10000.0), HEAD_DIM)
    assert np.allclose(found, plain / divisors)


# ---- rotary tables ----------------------------------------------------------------------------


def test_table_holds_cosines_and_sines() -> None:
    table = rotary_table(Rope(500.0, "linear", 2.0), 8, 5, 7)
    for row, position in enumerate((5, 6)):
        for i in range(4):
            angle = position / 2 / 500.0 ** (2 * i / 8)
            assert table[row, i] == np.float32(math.cos(angle))
            assert table[row, 4 + i] == np.float32(math.sin(angle))


@pytest.mark.parametrize("theta", [10000.0, 500000.0, 1e6])
def test_frequencies_are_correctly_rounded(theta: float) -> None:
    """So that every machine exports the same bytes."""
    found = inverse_frequencies(Rope(theta), 128)
    assert found[0] == 1
    for i, frequency in enumerate(found.tolist()):
        # theta ** (2i/128) raised to 64 is theta ** i, exact in fractions.
        low, high = (Fraction(math.nextafter(frequency, to)) for to in (0, 2))
        between = [(Fraction(frequency) + side) / 2 for side in (low, high)]
        exact = Fraction(theta) ** -i
        assert between[0] ** 64 <= exact <= between[1] ** 64


def test_llama3_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    rope = Rope(500000.0, "llama3", 32.0, 8192, 1.0, 4.0)
    scaled = inverse_frequencies(rope, 128)
    plain = inverse_frequencies(Rope(500000.0), 128)
    for new, old in zip(scaled, plain, strict=True):
        wavelength = 2 * math.pi / old
        if wavelength < 8192 / 4:
            assert new == pytest.approx(old, rel=1e-12)
        elif wavelength > 8192:
            assert new == pytest.approx(old / 32, rel=1e-12)
        else:
            smooth = (8192 / wavelength - 1.0) / 3.0
            assert new == pytest.approx((1 - smooth) * old / 32 + smooth * old, rel=1e-12)


def test_yarn_ramps_between_turns_and_scales_the_table() -> None:
    rope = Rope(1e6, "yarn", 4.0, 8192)
    ratio = inverse_frequencies(rope, 128) / inverse_frequencies(Rope(1e6), 128)
    turns = 8192 * inverse_frequencies(Rope(1e6), 128) / (2 * math.pi)
    assert np.allclose(ratio[turns > 40], 1) and np.allclose(ratio[turns < 0.8], 0.25)
    assert (np.diff(ratio) <= 1e-12).all()
    assert rotary_table(rope, 128, 0, 1)[0, 0] == np.float32(0.1 * math.log(4) + 1)


def test_files_that_the_safetensors_library_wrote(tiny_llama: Tiny, tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.numpy").save_file
    folder = tmp_path / "m"
    shutil.copytree(tiny_llama.path, folder)
    random = np.random.default_rng(3)
    expected = {
        name: (values + random.standard_normal(values.shape) / 64).astype(np.float16)
        for name, values in tiny_llama.tensors.items()
    }
    save_file(expected, folder / "model.safetensors", metadata={"format": "pt"})
    with open_checkpoint(folder) as checkpoint:
        for name, values in expected.items():
            assert checkpoint.shape(name) == values.shape
            found = (
                checkpoint.vector(name)
                if values.ndim == 1
                else checkpoint.tensor_rows(name, 0, len(values))
            )
            assert np.array_equal(found, values.astype(np.float32)), name
