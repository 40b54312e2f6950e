"""The fp32 model: causal, windows apart, and what int8 activations change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bitmtp_edge.export.checkpoints import open_checkpoint
from bitmtp_edge.export.reference_model import reference_logits, run_layers

from .tiny_models import LAYERS, VOCABULARY, Floats, Tiny, write_folder

RANDOM = np.random.default_rng(2)
LONG: list[int] = RANDOM.integers(0, VOCABULARY, 150).tolist()  # more than two blocks of 64 rows
OTHER: list[int] = RANDOM.integers(0, VOCABULARY, 20).tolist()


def logits(path: Path, *windows: Sequence[int], int8: bool = False) -> Floats:
    with open_checkpoint(path) as checkpoint:
        blocks = list(reference_logits(checkpoint, windows, int8_activations=int8))
    assert all(len(block) <= 64 for block in blocks)
    return np.concatenate(blocks)


def near(got: Floats, want: Floats) -> None:
    """Equal but for the order of sums, which NumPy chooses by the number of rows."""
    assert got.dtype == np.float32 and got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=2e-4 * np.abs(want).max())


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("reference") / request.param
    return write_folder(folder, request.param, tie_word_embeddings=request.param == "llama")


def test_a_row_depends_on_nothing_after_it(model: Tiny) -> None:
    whole = logits(model.path, LONG)
    assert whole.shape == (150, VOCABULARY)
    changed = [*LONG[:100], *OTHER]
    near(logits(model.path, changed)[:100], whole[:100])
    near(logits(model.path, LONG[:70]), whole[:70])


def test_a_row_depends_on_all_before_it(model: Tiny) -> None:
    changed = [*LONG]
    changed[3] = (changed[3] + 1) % VOCABULARY
    off = np.abs(logits(model.path, changed) - logits(model.path, LONG)).max(axis=1)
    assert (off[:3] < 1e-3).all() and (off[3:] > 1e-5).all()


def test_windows_are_texts_of_their_own(model: Tiny) -> None:
    together = logits(model.path, OTHER, LONG, OTHER[:1], OTHER)
    alone = [logits(model.path, window) for window in (OTHER, LONG, OTHER[:1], OTHER)]
    near(together, np.concatenate(alone))


def test_int8_activations_cost_a_little(model: Tiny) -> None:
    exact, rounded = logits(model.path, OTHER), logits(model.path, OTHER, int8=True)
    error = np.linalg.norm(exact - rounded) / np.linalg.norm(exact)
    assert 1e-4 < error < 0.05


def test_what_an_observer_sees(tiny_llama: Tiny) -> None:
    """The input of every linear of every layer, and its columns' squared norms."""
    seen: dict[tuple[int, str], tuple[int, ...]] = {}
    layers = []
    with open_checkpoint(tiny_llama.path) as checkpoint:

        def observe(layer: int, name: str, x: Floats, squares: Floats) -> None:
            seen[layer, name] = x.shape
            if (layer, name) == (0, "down"):
                weight = tiny_llama.tensors["model.layers.0.mlp.down_proj.weight"]
                expected = np.square(weight.astype(np.float64)).sum(axis=0)
                np.testing.assert_allclose(squares, expected, rtol=1e-5)

        hidden = run_layers(
            checkpoint, [OTHER], observe=observe, on_layer=lambda: layers.append(None)
        )
    assert len(layers) == LAYERS and hidden.shape == (20, 128)
    widths = {"qkv": 128, "o": 256, "gate_up": 128, "down": 192}
    assert seen == {(i, name): (20, w) for i in range(LAYERS) for name, w in widths.items()}
