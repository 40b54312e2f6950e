"""A trained model, written, read and exported again: it stays the model that was trained."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed: it comes with the extra 'train'"
)

from bitmtp_edge.bundle import Bundle  # noqa: E402
from bitmtp_edge.export.checkpoints import open_checkpoint  # noqa: E402
from bitmtp_edge.export.checkpoints.ternary import MultiToken, TernaryCheckpoint  # noqa: E402
from bitmtp_edge.export.pipeline import export_bundle  # noqa: E402
from bitmtp_edge.export.reference_model import reference_logits  # noqa: E402
from bitmtp_edge.export.training.recipe import read_recipe  # noqa: E402
from bitmtp_edge.export.training.run import train  # noqa: E402
from bitmtp_edge.export.training.saved import write_trained  # noqa: E402
from bitmtp_edge.export.training.student import build_student, student_config  # noqa: E402

from .tiny_runs import BLOCK, LENGTH, Run, alphabet_run  # noqa: E402
from .windows import window_logits  # noqa: E402

TOKENS = [70, 71, 72, 73, 74, 75]


def hashes(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def trained_model(run: Run) -> Any:
    """The network as it was when the run saved its state."""
    state = torch.load(run.folder / "state.pt", weights_only=True)
    recipe = read_recipe(run.recipe)
    with open_checkpoint(run.source.path) as checkpoint:
        config = student_config(checkpoint, recipe.student, LENGTH)
        model = build_student(checkpoint, recipe.student, recipe.objective, config)
    model.load_state_dict(state["model"])
    return model


@pytest.mark.parametrize(
    ("student", "shapes"),
    [
        ({"group_size": 64}, {}),
        ({"group_size": 0}, {"tie_word_embeddings": False}),
        ({"group_size": 64, "vocabulary": 280, "layers": 2}, {"num_hidden_layers": 4}),
    ],
)
def test_the_checkpoint_is_the_model(
    student: dict[str, Any], shapes: dict[str, Any], tmp_path: Path
) -> None:
    run = alphabet_run(tmp_path, steps=3, texts=80, **shapes)
    run.rewrite("student", **student)
    train(run.plan(), "cpu", resume=False)
    model = trained_model(run)
    with open_checkpoint(run.folder / "model") as checkpoint:
        assert isinstance(checkpoint, TernaryCheckpoint)
        assert checkpoint.multi_token == MultiToken(BLOCK, "causal", 1)
        masked = [*TOKENS, -1, -1, -1]
        (expected,) = reference_logits(checkpoint, [masked], int8_activations=True)
    found = window_logits(model, TOKENS, masks=3).numpy()
    assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)


def test_exporting_again_gives_the_same_bytes(alphabet: Run, tmp_path: Path) -> None:
    model = alphabet.folder / "model"
    first = export_bundle(model, tmp_path / "a" / "bundle")
    second = export_bundle(model, tmp_path / "b" / "bundle")
    assert hashes(first.path) == hashes(second.path)


def test_writing_again_gives_the_same_bytes(alphabet: Run, tmp_path: Path) -> None:
    model, recipe = trained_model(alphabet), read_recipe(alphabet.recipe)
    with open_checkpoint(alphabet.source.path) as checkpoint:
        text = checkpoint.text
        for _ in range(2):  # the second time in place of the first
            write_trained(
                tmp_path / "model", model, recipe, checkpoint, text.tokenizer_json, "template"
            )
    found, theirs = hashes(tmp_path / "model"), hashes(alphabet.folder / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert found.pop("chat_template.jinja") != theirs.pop("chat_template.jinja")
    assert found == theirs


def test_the_bundle_of_a_run(alphabet: Run, tmp_path: Path) -> None:
    bundle = export_bundle(alphabet.folder / "model", tmp_path / "bundle")
    assert bundle.model.context == LENGTH
    assert bundle.model.name == "tiny"
    decoding = bundle.decoding
    assert (decoding.policy, decoding.block) == ("hybrid", BLOCK)
    with open_checkpoint(alphabet.source.path) as checkpoint:
        assert list(decoding.stop_ids) == checkpoint.text.stop_ids
    assert Bundle.open(tmp_path / "bundle").model.block_attention == "causal"


def test_full_blocks_are_recorded(tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, steps=1, texts=80)
    train(run.plan(block_attention="full"), "cpu", resume=False)
    bundle = export_bundle(run.folder / "model", tmp_path / "bundle")
    assert bundle.model.block_attention == "full"


def test_the_baseline_knows_nothing_of_masks(tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, steps=1, texts=80)
    train(run.plan(mtp_weight=0.0), "cpu", resume=False)
    folder = run.folder / "model"
    assert "bitmtp" not in json.loads((folder / "config.json").read_text())
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.shape("model.mask_embeddings.weight") is None
    assert export_bundle(folder, tmp_path / "bundle").decoding.policy == "ar"


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {"rope_type": "divisors", "divisors": [1.0, 1.0, 1.0, 1.5, 2.0, 2.0, 4.0, 8.0]},
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_rotary_scaling_is_kept(scaling: dict[str, Any], tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, steps=1, texts=80, rope_scaling=scaling)
    train(run.plan(), "cpu", resume=False)
    with open_checkpoint(run.source.path) as theirs, open_checkpoint(run.folder / "model") as ours:
        assert ours.config.rope == theirs.config.rope
        assert ours.config.rope.kind == scaling["rope_type"]
        assert ours.config.context == LENGTH
