"""Smoothing: the same function, a smaller int8 loss, and bounded, repeatable ratios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.checkpoints import open_checkpoint
from bitmtp_edge.export.checkpoints.base import Checkpoint
from bitmtp_edge.export.pipeline import export_bundle
from bitmtp_edge.export.quantize.smoothing import smooth, smoothing_ratio
from bitmtp_edge.export.reference_model import reference_logits

from .tiny_models import VOCABULARY, Floats, Tiny, write_folder, write_safetensors

TOKENS = np.random.default_rng(9).integers(0, VOCABULARY, 48).tolist()
LOUD = (5, 77)  # channels
NORMS = ("input_layernorm", "post_attention_layernorm")


def logits(checkpoint: Checkpoint, *, int8: bool = False) -> Floats:
    return np.concatenate(list(reference_logits(checkpoint, [TOKENS], int8_activations=int8)))


def rewrite(model: Tiny, **changes: Floats) -> None:
    write_safetensors(model.path / "model.safetensors", {**model.tensors, **changes}, "F32")


def plant_outliers(model: Tiny) -> None:
    """Two channels behind every norm 100 times as loud, their weights as much smaller."""
    found = {name: values.copy() for name, values in model.tensors.items()}
    for name, values in found.items():
        if name.rpartition(".")[0].endswith(NORMS):
            values[list(LOUD)] *= 100
        readers = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
        if values.ndim == 2 and any(part in name for part in readers):
            values[:, list(LOUD)] /= 100
    rewrite(model, **found)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": False}),
        ("qwen2", {}),
        ("qwen3", {"tie_word_embeddings": False}),
    ],
)
def test_the_function_stays(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = write_folder(tmp_path / "m", family, **changes)
    with open_checkpoint(model.path) as plain, smooth(open_checkpoint(model.path)) as smoothed:
        want, got = logits(plain), logits(smoothed)
        moved = smoothed.vector("model.layers.0.input_layernorm.weight")
        assert (moved != plain.vector("model.layers.0.input_layernorm.weight")).any()
        final = (smoothed.vector("model.norm.weight") != plain.vector("model.norm.weight")).any()
        assert final == (not model.config["tie_word_embeddings"])
        name = "model.embed_tokens.weight"
        np.testing.assert_array_equal(
            smoothed.tensor_rows(name, 0, 9), plain.tensor_rows(name, 0, 9)
        )
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("tied", [True, False])
def test_outliers_cost_less(tmp_path: Path, tied: bool) -> None:
    model = write_folder(tmp_path / "m", tie_word_embeddings=tied)
    plant_outliers(model)
    with open_checkpoint(model.path) as plain, smooth(open_checkpoint(model.path)) as smoothed:
        want = logits(plain)
        loss = [
            float(np.linalg.norm(logits(each, int8=True) - want) / np.linalg.norm(want))
            for each in (plain, smoothed)
        ]
    assert loss[1] < loss[0] / 3, loss


def test_exported_weights_profit(tmp_path: Path) -> None:
    """The bundle's own norm is the quieter one."""
    model = write_folder(tmp_path / "m")
    plant_outliers(model)
    bundle = export_bundle(model.path, tmp_path / "b")
    norm = bundle.weights["layers.0.attention_norm"]
    loud = np.abs(norm[list(LOUD)]).max() / np.median(np.abs(norm))
    assert loud < 30  # 100 in the checkpoint


def test_it_repeats(tiny_llama: Tiny) -> None:
    names = [f"model.layers.{i}.{norm}.weight" for i in (0, 1) for norm in NORMS]
    with (
        smooth(open_checkpoint(tiny_llama.path)) as one,
        smooth(open_checkpoint(tiny_llama.path)) as two,
    ):
        for name in names:
            np.testing.assert_array_equal(one.vector(name), two.vector(name))


# ---- ratios --------------------------------------------------------------------------------------


def test_ratios_share_the_burden() -> None:
    """A channel 16 times as loud with equal weights is divided by 4 against the others."""
    ratio = smoothing_ratio(np.array([1, 16], np.float32), np.ones(2))
    assert ratio.dtype == np.float32
    np.testing.assert_allclose(ratio, [2, 0.5])
    np.testing.assert_allclose(np.exp2(np.log2(ratio).mean()), 1)


def test_ratios_are_bounded() -> None:
    largest = np.array([1e-30, 1, 1e30], np.float32)
    ratio = smoothing_ratio(largest, np.ones(3))
    assert ratio.max() == 256 and ratio.min() == 1 / 256


def test_channels_that_carry_nothing_keep_their_place() -> None:
    largest = np.array([0, 4, 1, 1, np.nan, np.inf, 1, 1], np.float32)
    squares = np.array([1, 1, 0, 16, 1, 1, np.nan, np.inf])
    ratio = smoothing_ratio(largest, squares)
    assert ratio[[0, 2, 4, 5, 6, 7]].tolist() == [1] * 6
    assert np.isfinite(ratio).all() and ratio[1] < 1 < ratio[3]
    assert smoothing_ratio(np.zeros(4, np.float32), np.zeros(4)).tolist() == [1] * 4


def test_small_differences_of_sums_do_not_show() -> None:
    random = np.random.default_rng(1)
    largest = np.asarray(np.exp2(random.integers(-4, 5, 64) / 2), np.float32)
    ratio = smoothing_ratio(largest, np.ones(64))
    octaves = np.log2(ratio) * 8
    np.testing.assert_allclose(octaves, np.rint(octaves), atol=1e-4)


# ---- odd checkpoints -----------------------------------------------------------------------------


def test_dead_channels_export(tmp_path: Path) -> None:
    """Channels that the norm silences and columns of zeros."""
    model = write_folder(tmp_path / "m")
    norm = model.tensors["model.layers.0.input_layernorm.weight"].copy()
    norm[3] = 0
    query = model.tensors["model.layers.0.self_attn.q_proj.weight"].copy()
    query[:, 7] = 0
    rewrite(
        model,
        **{
            "model.layers.0.input_layernorm.weight": norm,
            "model.layers.0.self_attn.q_proj.weight": query,
        },
    )
    with open_checkpoint(model.path) as plain, smooth(open_checkpoint(model.path)) as smoothed:
        want = logits(plain)
        np.testing.assert_allclose(logits(smoothed), want, atol=1e-4 * np.abs(want).max())
    export_bundle(model.path, tmp_path / "b")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.embed_tokens.weight",
    ],
)
def test_weights_that_are_not_finite_are_the_quantisers_to_name(
    name: str, value: float, tmp_path: Path
) -> None:
    model = write_folder(tmp_path / "m")
    changed = model.tensors[name].copy()
    changed[3, 5] = value
    rewrite(model, **{name: changed})
    with pytest.raises(UserError, match=rf"{name}.* holds values that are not finite"):
        export_bundle(model.path, tmp_path / "b")
    assert not (tmp_path / "b").exists()
