"""Trained ternary checkpoints: the bundle keeps their codes, and every engine computes them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitmtp_edge.bundle import BUNDLE_FILE, GRAPH_FILES, Bundle
from bitmtp_edge.cli import main
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import ReplayState, Role
from bitmtp_edge.engines.registry import open_engine
from bitmtp_edge.export import pipeline
from bitmtp_edge.export.checkpoints import open_checkpoint
from bitmtp_edge.export.pipeline import export_bundle
from bitmtp_edge.export.reference_model import reference_logits
from bitmtp_edge.layout import unpack_scales, unpack_weight
from bitmtp_edge.operators import Node

from .tiny_models import LAYERS, VOCABULARY, Floats, Tiny, tiny_ternary

VARIANTS: list[dict[str, Any]] = [
    {},
    {"group_size": 0, "tie_word_embeddings": False},
    {"group_size": 128, "block": None, "hidden_size": 192, "intermediate_size": 576},
    {"group_size": 0, "masks": 3, "hidden_size": 100, "intermediate_size": 60},
]


def _hashes(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def _values(bundle: Bundle, node: Node) -> Floats:
    """fp32 of the weight that an embedding, a linear or a head reads."""
    a = node.attributes
    rows, width, group = (int(a[name]) for name in ("rows", "width", "group_size"))
    port = "packed" if node.op == "TernaryLinear" else "table"
    bits = 2 if node.op == "TernaryLinear" else 8
    codes = unpack_weight(bundle.weights[node.input(port)], rows, width, bits)
    scales = unpack_scales(bundle.weights[node.input("scales")], rows).astype(np.float32)
    return codes * np.repeat(scales, group or width, axis=1)[:, :width]


def _stacked(tiny: Tiny, layer: int, *names: str) -> Floats:
    return np.concatenate([tiny.tensors[f"model.layers.{layer}.{name}.weight"] for name in names])


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_bundle_holds_the_codes(variant: dict[str, Any], tmp_path: Path) -> None:
    source = tiny_ternary(tmp_path / "m", **variant)
    bundle = export_bundle(source.path, tmp_path / "b", context=512)
    expected = {
        "embedding": source.tensors["model.embed_tokens.weight"],
        "head": source.tensors.get("lm_head.weight", source.tensors["model.embed_tokens.weight"]),
    }
    for i in range(LAYERS):
        qkv = [f"self_attn.{x}_proj" for x in "qkv"]
        expected[f"layers.{i}.qkv"] = _stacked(source, i, *qkv)
        expected[f"layers.{i}.o"] = _stacked(source, i, "self_attn.o_proj")
        expected[f"layers.{i}.gate_up"] = _stacked(source, i, "mlp.gate_proj", "mlp.up_proj")
        expected[f"layers.{i}.down"] = _stacked(source, i, "mlp.down_proj")
    for role in GRAPH_FILES:
        nodes = {node.name: node for node in bundle.nodes(role)}
        for name, weights in expected.items():
            assert np.array_equal(_values(bundle, nodes[name]), weights), (role, name)
    norm = bundle.weights["layers.1.mlp_norm"]
    theirs = source.tensors["model.layers.1.post_attention_layernorm.weight"]
    assert np.array_equal(norm, theirs)  # no smoothing
    masks = source.tensors.get("model.mask_embeddings.weight")
    assert (masks is None) == ("mask_embeddings" not in bundle.tensors)
    if masks is not None:
        assert np.array_equal(bundle.weights["mask_embeddings"], masks)


def test_a_tied_table_is_stored_once(tiny_ternary_bundle: Bundle) -> None:
    assert "head.int8" not in tiny_ternary_bundle.tensors
    nodes = tiny_ternary_bundle.nodes("verify")
    assert nodes[0].input("table") == nodes[-1].input("table") == "embedding.int8"
    assert nodes[0].input("mask_embeddings") == "mask_embeddings"


def test_both_roles_are_one_graph(tiny_ternary_bundle: Bundle) -> None:
    bundle = tiny_ternary_bundle
    assert bundle.nodes("draft") == bundle.nodes("verify")
    assert bundle.model.draft_rows_final
    assert {node.op for node in bundle.nodes("draft")}.isdisjoint({"DualPlaneLinear"})


def test_the_bundle_describes_itself(tiny_ternary_bundle: Bundle, tmp_path: Path) -> None:
    bundle = Bundle.open(tiny_ternary_bundle.path)
    model, decoding = bundle.model, bundle.decoding
    assert (model.weights, model.kv, model.mask_embeddings) == ("ternary", "fp16", 1)
    assert model.block_attention == "causal"
    assert (decoding.policy, decoding.gamma, decoding.kv4_from_segment) == ("hybrid", None, None)
    assert (decoding.block, decoding.tau, decoding.min_prefix) == (4, 0.9, 2)
    assert bundle.replay.draft_widths == tuple(range(1, 8))
    assert bundle.replay.verify_widths == (1, 2, 3, 5, 9, 128)
    full = tiny_ternary(tmp_path / "m", block=6, masks=5, attention="full", group_size=0)
    bundle = export_bundle(full.path, tmp_path / "b", kv="nested")
    assert (bundle.model.block_attention, bundle.model.mask_embeddings) == ("full", 5)
    assert bundle.model.kv == "nested" and bundle.decoding.kv4_from_segment is None
    assert bundle.model.draft_rows_final
    assert bundle.replay.verify_widths == (1, 2, 3, 5, 7, 13, 128)


def test_without_multi_token_training(tmp_path: Path) -> None:
    source = tiny_ternary(tmp_path / "m", block=None)
    bundle = export_bundle(source.path, tmp_path / "b")
    decoding = bundle.decoding
    assert (decoding.policy, decoding.block, decoding.tau, decoding.min_prefix) == (
        "ar",
        None,
        None,
        None,
    )
    assert bundle.model.mask_embeddings == 0 and bundle.replay.draft_widths == (1,)
    assert bundle.nodes("draft")[0].input("mask_embeddings") == ""


@pytest.mark.parametrize("engine", ["cpu", "onnxruntime"])
@pytest.mark.parametrize(
    ("variant", "kv"),
    [(VARIANTS[0], "fp16"), (VARIANTS[1], "nested"), (VARIANTS[2], "fp16"), (VARIANTS[3], "fp16")],
)
def test_engines_compute_the_checkpoint(
    variant: dict[str, Any], kv: str, engine: str, tmp_path: Path
) -> None:
    """With masks after the anchor where the model has them: as a draft step sees them."""
    source = tiny_ternary(tmp_path / "m", **variant)
    bundle = export_bundle(source.path, tmp_path / "b", kv=kv, context=512)
    tokens = np.random.default_rng(3).integers(0, VOCABULARY, 7).tolist()
    masks = bundle.model.mask_embeddings
    if masks:
        tokens[-3:] = [-1, -2, -3] if masks == 3 else [-1, -1, -1]
    with open_checkpoint(source.path) as checkpoint:
        exact = np.concatenate(list(reference_logits(checkpoint, [tokens])))
        (int8,) = reference_logits(checkpoint, [tokens], int8_activations=True)
    logits = {role: _logits(bundle, engine, role, tokens) for role in ("draft", "verify")}
    assert np.array_equal(logits["draft"], logits["verify"])
    cost = np.linalg.norm(int8 - exact) / np.linalg.norm(exact)
    error = np.linalg.norm(logits["verify"] - exact) / np.linalg.norm(exact)
    assert error < 1.5 * cost + 1e-3 < 0.1, (error, cost)


def _logits(bundle: Bundle, name: str, role: Role, tokens: list[int]) -> Floats:
    width = len(tokens)
    with open_engine(name, bundle) as engine:
        state = ReplayState(width, width, engine.segment, role, logits=True)
        logits = engine.replay(state, causal_window(tokens, 0, [], width, width, width)).logits
    assert logits is not None
    return logits


# ---- the same bytes ------------------------------------------------------------------------------

EXPORT = "import sys; from bitmtp_edge.cli import main; sys.exit(main(sys.argv[1:]))"


def test_the_same_checkpoint_gives_the_same_bytes(
    tiny_ternary_checkpoint: Tiny,
    tiny_ternary_bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline, "BLOCK_WEIGHTS", 1)  # tile by tile
    again = export_bundle(tiny_ternary_checkpoint.path, tmp_path / "again")
    assert _hashes(again.path) == _hashes(tiny_ternary_bundle.path)


@pytest.mark.parametrize("threads", ["1", "4"])
def test_another_process_gives_the_same_bytes(
    threads: str, tiny_ternary_checkpoint: Tiny, tiny_ternary_bundle: Bundle, tmp_path: Path
) -> None:
    """Another order of hashes, another number of threads: bundle.json has every file's SHA-256."""
    settings = {
        "PYTHONHASHSEED": threads,
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
    }
    target = tmp_path / "b"
    command = [sys.executable, "-c", EXPORT, "export", tiny_ternary_checkpoint.path, "-o", target]
    subprocess.run(command, check=True, env={**os.environ, **settings}, cwd=tmp_path)
    first, second = tiny_ternary_bundle.path / BUNDLE_FILE, target / BUNDLE_FILE
    assert first.read_bytes() == second.read_bytes()


# ---- the verbs -----------------------------------------------------------------------------------


def test_the_verbs(
    tiny_ternary_checkpoint: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = str(tiny_ternary_checkpoint.path), str(tmp_path / "b")
    assert main(["export", source, "-o", target]) == 0
    shown = capsys.readouterr()
    assert "ternary weights" in shown.out and "100%" in shown.err

    assert main(["verify", target, "--windows", "4", "--json"]) == 0
    (engine,) = json.loads(capsys.readouterr().out)["engines"]
    assert engine["fault"] is None and engine["operators"] == 4 * (8 * LAYERS + 3)

    assert main(["inspect", target]) == 0
    shown = capsys.readouterr()
    table = {line[:14].strip(): line[14:].strip() for line in shown.out.splitlines()}
    assert {"ternary", "int8", "scales", "other"} <= table.keys() and "base" not in table
    assert table["masks"] == "1, causal blocks"
    assert table["decoding"] == "hybrid, block 4, tau 0.9, min-prefix 2"

    text = tmp_path / "text.txt"
    text.write_text("in the heat another " * 10)
    options = ["--source", source, "--text", str(text), "--positions", "60"]
    assert main(["quality", target, *options]) == 0
    assert "smooth" not in capsys.readouterr().out
    assert main(["quality", target, *options, "--json"]) == 0
    fp32, int8, bundle = json.loads(capsys.readouterr().out)["models"]
    assert bundle["model"] == "W2A8" and bundle["agreement_verify"] == 1
    assert abs(bundle["ratio"] - int8["ratio"]) < 0.02
    assert fp32["ratio"] == 1
