"""Students and teachers: which layers and ids they keep, and that they compute the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed: it comes with the extra 'train'"
)

from bitmtp_edge.errors import UserError  # noqa: E402
from bitmtp_edge.export.checkpoints import open_checkpoint  # noqa: E402
from bitmtp_edge.export.reference_model import reference_logits  # noqa: E402
from bitmtp_edge.export.training.quantizers import ternary_codes  # noqa: E402
from bitmtp_edge.export.training.recipe import ObjectiveRecipe, StudentRecipe  # noqa: E402
from bitmtp_edge.export.training.student import (  # noqa: E402
    build_student,
    build_teacher,
    kept_layers,
    student_config,
)

from ..tiny_models import VOCABULARY, tiny_ternary, write_folder, write_gguf  # noqa: E402
from .tiny_runs import LENGTH, SHAPES  # noqa: E402
from .windows import window_logits  # noqa: E402

TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 20).tolist()


@pytest.mark.parametrize(
    ("count", "kept", "expected"),
    [
        (4, None, [0, 1, 2, 3]),
        (4, 4, [0, 1, 2, 3]),
        (30, 10, [0, 3, 6, 10, 13, 16, 19, 23, 26, 29]),
        (5, 2, [0, 4]),
        (5, 1, [0]),
    ],
)
def test_kept_layers(count: int, kept: int | None, expected: list[int]) -> None:
    assert kept_layers(count, kept, "m") == expected


def test_more_layers_than_there_are() -> None:
    with pytest.raises(UserError, match=r"m has 4 layers, fewer than student.layers = 5"):
        kept_layers(4, 5, "m")


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_teacher_computes_its_checkpoint(family: str, tied: bool, tmp_path: Path) -> None:
    tiny = write_folder(tmp_path / "m", family, tie_word_embeddings=tied, **SHAPES)
    with open_checkpoint(tiny.path) as checkpoint:
        teacher = build_teacher(checkpoint, checkpoint.config)
        (expected,) = reference_logits(checkpoint, [TOKENS])
        cut = build_teacher(checkpoint, replace(checkpoint.config, vocab_size=270))
    found = window_logits(teacher, TOKENS)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    low = [token % 270 for token in TOKENS]
    torch.testing.assert_close(window_logits(cut, low), window_logits(teacher, low)[:, :270])


def test_a_teacher_from_gguf(tmp_path: Path) -> None:
    tiny = write_gguf(tmp_path / "m.gguf")
    with open_checkpoint(tiny.path) as checkpoint:
        teacher = build_teacher(checkpoint, checkpoint.config)
        (expected,) = reference_logits(checkpoint, [TOKENS])
    np.testing.assert_allclose(window_logits(teacher, TOKENS), expected, rtol=1e-4, atol=1e-4)


def test_what_a_student_keeps(tmp_path: Path) -> None:
    tiny = write_folder(tmp_path / "m", num_hidden_layers=5, **SHAPES)
    recipe = StudentRecipe(layers=3, vocabulary=280)
    with open_checkpoint(tiny.path) as checkpoint:
        config = student_config(checkpoint, recipe, LENGTH // 2)
        student = build_student(checkpoint, recipe, ObjectiveRecipe(), config)
    assert (config.num_layers, config.vocab_size) == (3, 280)
    assert config.context == config.longest_context == LENGTH // 2
    table = tiny.tensors["model.embed_tokens.weight"]
    assert np.array_equal(student.embedding.detach(), table[:280])
    for layer, index in zip(student.layers, (0, 2, 4), strict=True):
        prefix = f"model.layers.{index}."
        for product, name in (
            (layer.qkv[0], "self_attn.q_proj"),
            (layer.qkv[2], "self_attn.v_proj"),
            (layer.o, "self_attn.o_proj"),
            (layer.gate, "mlp.gate_proj"),
            (layer.up, "mlp.up_proj"),
            (layer.down, "mlp.down_proj"),
        ):
            expected = tiny.tensors[f"{prefix}{name}.weight"]
            assert np.array_equal(product.weight.detach(), expected)
        norm = tiny.tensors[f"{prefix}post_attention_layernorm.weight"]
        assert np.array_equal(layer.mlp_norm.detach(), norm)
    assert student.mask_embedding is not None
    np.testing.assert_allclose(
        student.mask_embedding.detach()[0], table[:280].mean(0), rtol=1e-5, atol=1e-7
    )


def test_the_baseline_has_no_mask(tmp_path: Path) -> None:
    tiny = write_folder(tmp_path / "m", **SHAPES)
    with open_checkpoint(tiny.path) as checkpoint:
        config = student_config(checkpoint, StudentRecipe(), LENGTH)
        objective = ObjectiveRecipe(mtp_weight=0)
        student = build_student(checkpoint, StudentRecipe(), objective, config)
    assert student.mask_embedding is None


@pytest.mark.parametrize(
    ("family", "shapes", "recipe", "message"),
    [
        ("qwen2", {}, StudentRecipe(), "attention biases are not trained"),
        ("llama", {}, StudentRecipe(group_size=128), "groups of 128 do not divide a width of 64"),
        ("llama", {}, StudentRecipe(vocabulary=302), "has 301 token ids, fewer than student.voc"),
        ("llama", {}, StudentRecipe(layers=3), "has 2 layers, fewer than student.layers = 3"),
        (
            "llama",
            {"intermediate_size": 66},
            StudentRecipe(group_size=0),
            "a width of 66 is no multiple of 4",
        ),
    ],
)
def test_what_cannot_be_trained(
    family: str, shapes: dict[str, Any], recipe: StudentRecipe, message: str, tmp_path: Path
) -> None:
    tiny = write_folder(tmp_path / "m", family, **{**SHAPES, **shapes})
    with (
        open_checkpoint(tiny.path) as checkpoint,
        pytest.raises(UserError, match=message) as caught,
    ):
        student_config(checkpoint, recipe, LENGTH)
    assert "\n" not in str(caught.value)


def test_a_teacher_with_biases_is_refused(tmp_path: Path) -> None:
    tiny = write_folder(tmp_path / "m", "qwen2", **SHAPES)
    with (
        open_checkpoint(tiny.path) as checkpoint,
        pytest.raises(UserError, match="attention biases are not trained"),
    ):
        build_teacher(checkpoint, checkpoint.config)


# ---- going on with a trained checkpoint --------------------------------------------------------


@pytest.mark.parametrize("group_size", [0, 64])
def test_a_trained_checkpoint_starts_where_it_ended(group_size: int, tmp_path: Path) -> None:
    """Absmean of dequantised codes would shrink every scale by the share of codes that are 0."""
    tiny = tiny_ternary(tmp_path / "m", group_size=group_size, **SHAPES)
    recipe = StudentRecipe(group_size=group_size)
    with open_checkpoint(tiny.path) as checkpoint:
        config = student_config(checkpoint, recipe, LENGTH)
        student = build_student(checkpoint, recipe, ObjectiveRecipe(), config)
        windows = [[*TOKENS, -1, -1, -1]]
        (expected,) = reference_logits(checkpoint, windows, int8_activations=True)
    for layer, prefix in zip(student.layers, ("model.layers.0.", "model.layers.1."), strict=True):
        codes, scales = ternary_codes(layer.down.weight.detach(), group_size)
        kept = codes * scales.repeat_interleave(group_size, -1) if group_size else codes * scales
        stored = tiny.tensors[f"{prefix}mlp.down_proj.weight"]
        assert np.array_equal(np.sign(stored), codes)
        np.testing.assert_allclose(kept, stored, rtol=1e-3)
    assert student.mask_embedding is not None
    stored = tiny.tensors["model.mask_embeddings.weight"]
    assert np.array_equal(student.mask_embedding.detach(), stored)
    found = window_logits(student, TOKENS, masks=3).numpy()
    assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("trained", "recipe", "message"),
    [
        ({}, StudentRecipe(group_size=0), "has ternary groups of 64, not student.group_size = 0"),
        ({"masks": 3}, StudentRecipe(), "has 3 mask embeddings: only one shared row is trained"),
    ],
)
def test_trained_checkpoints_that_do_not_fit(
    trained: dict[str, Any], recipe: StudentRecipe, message: str, tmp_path: Path
) -> None:
    tiny = tiny_ternary(tmp_path / "m", **trained, **SHAPES)
    with open_checkpoint(tiny.path) as checkpoint, pytest.raises(UserError, match=message):
        student_config(checkpoint, recipe, LENGTH)
