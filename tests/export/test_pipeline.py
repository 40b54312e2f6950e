"""Export from end to end: what lands in the bundle, and what happens when it cannot."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitmtp_edge.bundle import BUNDLE_FILE, WEIGHTS_FILE, Bundle
from bitmtp_edge.cli import main
from bitmtp_edge.errors import UserError
from bitmtp_edge.export import pipeline
from bitmtp_edge.export.checkpoints.rotary import Rope, rotary_table
from bitmtp_edge.export.pipeline import export_bundle
from bitmtp_edge.layout import unpack_scales, unpack_weight

from .tiny_models import (
    CONTEXT,
    LAYERS,
    TEMPLATE,
    VOCABULARY,
    Floats,
    Tiny,
    write_folder,
    write_gguf,
)


def _hashes(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def _dequantised(bundle: Bundle, name: str, rows: int, width: int) -> tuple[Floats, Floats, Any]:
    """The base view, the composed view, and the step of the latter."""
    base = unpack_weight(bundle.weights[f"{name}.base"], rows, width, 4).astype(np.int32)
    refinement = unpack_weight(bundle.weights[f"{name}.refinement"], rows, width, 4)
    scales = unpack_scales(bundle.weights[f"{name}.scales"], rows).astype(np.float32)
    group = 64 if width % 128 else 128
    steps = np.repeat(scales, group, axis=1)[:, :width]
    return base * steps, (16 * base + refinement) * (steps / 16), steps / 16


def _stacked(tiny: Tiny, layer: int, *names: str) -> Floats:
    return np.concatenate([tiny.tensors[f"model.layers.{layer}.{name}.weight"] for name in names])


def test_the_planes_hold_the_checkpoint(tiny_llama: Tiny, tiny_bundle: Bundle) -> None:
    expected = {"embedding": tiny_llama.tensors["model.embed_tokens.weight"]}
    for i in range(LAYERS):
        qkv = [f"self_attn.{x}_proj" for x in "qkv"]
        expected[f"layers.{i}.qkv"] = _stacked(tiny_llama, i, *qkv)
        expected[f"layers.{i}.o"] = _stacked(tiny_llama, i, "self_attn.o_proj")
        expected[f"layers.{i}.gate_up"] = _stacked(tiny_llama, i, "mlp.gate_proj", "mlp.up_proj")
        expected[f"layers.{i}.down"] = _stacked(tiny_llama, i, "mlp.down_proj")
    for name, weights in expected.items():
        base, composed, step = _dequantised(tiny_bundle, name, *weights.shape)
        weights = weights / _smoothing(tiny_llama, tiny_bundle, name)
        assert (np.abs(weights - composed) <= step * 1.001).all(), name
        assert (np.abs(weights - base) <= 16 * step * 1.001).all(), name
        assert np.abs(weights - composed).mean() < np.abs(weights - base).mean() / 8, name
    norm = tiny_bundle.weights["final_norm"]  # a tied head is not smoothed
    assert np.array_equal(norm, tiny_llama.tensors["model.norm.weight"])
    positions = CONTEXT + tiny_bundle.replay.max_width
    table = rotary_table(Rope(10000.0), 64, 0, positions)
    assert np.array_equal(tiny_bundle.weights["rotary"], table)
    assert "head.base" not in tiny_bundle.tensors


def _smoothing(tiny: Tiny, bundle: Bundle, name: str) -> np.ndarray:
    """What the columns of matrix ``name`` were divided by: its norm grew by the same factor."""
    layer, _, linear = name.rpartition(".")
    norms = {
        "qkv": ("attention_norm", "input_layernorm"),
        "gate_up": ("mlp_norm", "post_attention_layernorm"),
    }
    if linear not in norms:
        return np.ones(1, np.float32)
    ours, theirs = norms[linear]
    return bundle.weights[f"{layer}.{ours}"] / tiny.tensors[f"model.{layer}.{theirs}.weight"]


def test_gguf_and_folder_of_one_model_give_one_bundle(
    tiny_gguf: Tiny, tiny_bundle: Bundle, tmp_path: Path
) -> None:
    bundle = export_bundle(tiny_gguf.path, tmp_path / "b")
    assert bundle.model.name == "llama"
    for name in (WEIGHTS_FILE, "draft.onnx", "verify.onnx"):
        assert (bundle.path / name).read_bytes() == (tiny_bundle.path / name).read_bytes(), name
    assert bundle.manifest.tensors == tiny_bundle.manifest.tensors
    assert bundle.manifest.graphs == tiny_bundle.manifest.graphs


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_other_families_agree_between_formats(family: str, tmp_path: Path) -> None:
    untied = {"tie_word_embeddings": False}
    folder = write_folder(tmp_path / "m", family, dtype="BF16", shards=3, **untied)
    gguf = write_gguf(tmp_path / "m.gguf", family, kind="F16", **untied)
    first = export_bundle(folder.path, tmp_path / "a")
    second = export_bundle(gguf.path, tmp_path / "b")
    for name in (WEIGHTS_FILE, "draft.onnx", "verify.onnx"):
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes(), name
    optional = {"qwen2": {"qkv_bias"}, "qwen3": {"q_norm", "k_norm"}}[family]
    for name in optional:
        assert f"layers.1.{name}" in first.tensors
    attention = next(n for n in first.nodes("verify") if n.op == "NestedKVAttention")
    used = {port for port in ("qkv_bias", "q_norm", "k_norm") if attention.input(port)}
    assert used == optional
    assert {"head.base", "head.refinement", "head.scales"} <= first.tensors.keys()
    head = _dequantised(first, "head", VOCABULARY, 128)[1]
    ratio = first.weights["final_norm"] / folder.tensors["model.norm.weight"]
    assert np.abs(head * ratio - folder.tensors["lm_head.weight"]).max() < 0.01
    if family == "qwen2":
        biases = [folder.tensors[f"model.layers.0.self_attn.{x}_proj.bias"] for x in "qkv"]
        assert np.array_equal(first.weights["layers.0.qkv_bias"], np.concatenate(biases))


def test_the_bundle_describes_itself(tiny_bundle: Bundle) -> None:
    bundle = Bundle.open(tiny_bundle.path)
    assert (bundle.path / "chat_template.jinja").read_text() == TEMPLATE
    assert bundle.decoding.stop_ids[0] == 2 and bundle.decoding.policy == "nested"
    assert not bundle.model.draft_rows_final and bundle.model.tied_embeddings
    assert bundle.replay.segments == (512, 1024)
    assert {1, bundle.decoding.gamma + 1} <= set(bundle.replay.verify_widths)
    assert len(bundle.nodes("draft")) == 8 * LAYERS + 3


def test_the_same_checkpoint_gives_the_same_bytes(
    tiny_llama: Tiny, tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "BLOCK_WEIGHTS", 1)  # tile by tile
    again = export_bundle(tiny_llama.path, tmp_path / "again")
    assert _hashes(again.path) == _hashes(tiny_bundle.path)


def test_fp16_kv(tiny_llama: Tiny, tmp_path: Path) -> None:
    bundle = export_bundle(tiny_llama.path, tmp_path / "b", kv="fp16")
    assert bundle.model.kv == "fp16" and bundle.decoding.kv4_from_segment is None
    for role in ("draft", "verify"):
        attention = next(n for n in bundle.nodes(role) if n.op == "NestedKVAttention")
        assert attention.attributes["kv"] == "fp16"
        assert len(attention.outputs) == 3
        assert not attention.input("history_scale") and not attention.input("kv4_length")


@pytest.mark.parametrize(
    ("context", "segments"),
    [(2, (128,)), (600, (512, 640)), (1024, (512, 1024))],
)
def test_context(context: int, segments: tuple[int, ...], tiny_llama: Tiny, tmp_path: Path) -> None:
    bundle = export_bundle(tiny_llama.path, tmp_path / "b", context=context)
    assert bundle.model.context == context and bundle.replay.segments == segments
    assert bundle.weights["rotary"].shape[0] == context + bundle.replay.max_width


@pytest.mark.parametrize("context", [0, -1, 1, 1025])
def test_a_context_out_of_range(context: int, tiny_llama: Tiny, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="takes 2 to 1024 tokens"):
        export_bundle(tiny_llama.path, tmp_path / "b", context=context)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_told_before_the_work(
    tiny_llama: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setattr(pipeline, "quantize_nested", lambda *arguments: pytest.fail("too late"))
    with pytest.raises(UserError, match="onnx is not installed"):
        export_bundle(tiny_llama.path, tmp_path / "b")


# ---- targets ----------------------------------------------------------------------------------


def test_an_existing_bundle_needs_force(tiny_llama: Tiny, tmp_path: Path) -> None:
    target = tmp_path / "b"
    export_bundle(tiny_llama.path, target)
    before = _hashes(target)
    with pytest.raises(UserError, match="add --force"):
        export_bundle(tiny_llama.path, target, context=512)
    assert _hashes(target) == before
    (target / "engines" / "x").mkdir(parents=True)
    bundle = export_bundle(tiny_llama.path, target, context=512, force=True)
    assert bundle.model.context == 512
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert not (target / "engines").exists()


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_bundle_is_never_overwritten(
    force: bool, tiny_llama: Tiny, tmp_path: Path
) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / BUNDLE_FILE).write_text('{"format": "something else"}')
    file.write_text("mine")
    for target in (folder, file, tiny_llama.path):
        with pytest.raises(UserError, match="not a bundle"):
            export_bundle(tiny_llama.path, target, force=force)
    assert file.read_text() == "mine" and [p.name for p in folder.iterdir()] == [BUNDLE_FILE]


def test_a_target_that_cannot_be_written(tiny_llama: Tiny, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write beside"):
        export_bundle(tiny_llama.path, tmp_path / "file" / "b")


def test_a_full_disk(tiny_llama: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 30, 1 << 30, 5 << 20))
    with pytest.raises(UserError, match=r"needs \d+ MiB, the disk has 5 MiB free"):
        export_bundle(tiny_llama.path, tmp_path / "b")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("existing", [False, True])
def test_an_interrupted_export_leaves_nothing(
    error: Any,
    existing: bool,
    tiny_llama: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "b"
    before = {}
    if existing:
        export_bundle(tiny_llama.path, target)
        before = _hashes(target)
    calls = []

    def quantize(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise error
        return kept(*arguments)

    kept = pipeline.quantize_nested
    monkeypatch.setattr(pipeline, "quantize_nested", quantize)
    with pytest.raises((KeyboardInterrupt, UserError)):
        export_bundle(tiny_llama.path, target, force=True)
    assert [path.name for path in tmp_path.iterdir()] == (["b"] if existing else [])
    assert not existing or _hashes(target) == before


def test_what_a_killed_export_left_is_cleared(tiny_llama: Tiny, tmp_path: Path) -> None:
    partial = tmp_path / "b.partial"
    partial.mkdir()
    (partial / WEIGHTS_FILE).write_bytes(b"half")
    export_bundle(tiny_llama.path, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    partial.mkdir()
    (partial / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="was not made by an export"):
        export_bundle(tiny_llama.path, tmp_path / "b", force=True)
    assert (partial / "thesis.tex").read_text() == "mine"


def test_a_second_publish_that_fails_puts_the_old_bundle_back(
    tiny_llama: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "b"
    export_bundle(tiny_llama.path, target)
    before = _hashes(target)
    rename = Path.rename

    def failing(self: Path, to: Path) -> Path:
        if self.name == "b.partial":
            raise OSError(5, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(UserError, match="Input/output error"):
        export_bundle(tiny_llama.path, target, force=True)
    assert _hashes(target) == before and [p.name for p in tmp_path.iterdir()] == ["b"]


# ---- the command ------------------------------------------------------------------------------


def test_the_command(tiny_gguf: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "b"
    arguments = ["export", str(tiny_gguf.path), "-o", str(target), "--weights", "nested"]
    assert main([*arguments, "--kv", "nested", "--context", "512"]) == 0
    shown = capsys.readouterr()
    assert "nested weights" in shown.out and "100%" in shown.err
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1 and "--force" in shown.err
    assert main([*arguments, "--force"]) == 0
    assert Bundle.open(target).model.context == CONTEXT
