"""Bundles of random weights: sizes of the published models, codes that are codes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.errors import UserError
from bitmtp_edge.export import target_folder
from bitmtp_edge.export.shapes import SHAPES
from bitmtp_edge.export.synthetic import describe_synthetic, write_synthetic
from bitmtp_edge.layout import CODE_BITS, unpack_scales, unpack_weight
from bitmtp_edge.text.tokenizer import Tokenizer
from bitmtp_edge.verification import verify

from .tiny_models import tiny_synthetic

# What their publishers count: of Llama-2-7b and Qwen3-1.7B in the index of their safetensors files
# (less 267 rows of padding to Qwen3's vocabulary), of the others in their model cards.
PARAMETERS = {
    "bitnet-2b": 2.41e9,
    "bonsai-1.7b": 1_720_574_976 - 267 * 2048,
    "bonsai-4b": 4.02e9,
    "llama-2-7b": 6_738_415_616,
}
# Sizes of a ModelConfig that bundle.json tells under the same name.
SIZES = (
    *("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"),
    *("intermediate_size", "context"),
)


@pytest.fixture(scope="module", params=list(SHAPES))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of each small shape. Read-only."""
    return tiny_synthetic(tmp_path_factory.mktemp("synthetic") / request.param, request.param)


@pytest.mark.parametrize("name", list(SHAPES))
def test_sizes_are_the_published_ones(name: str) -> None:
    shape = SHAPES[name]
    assert shape.parameters == pytest.approx(PARAMETERS[name], rel=2e-3)
    if float(PARAMETERS[name]).is_integer() and PARAMETERS[name] % 10:
        assert shape.parameters == PARAMETERS[name]
    config = shape.config
    assert config.num_heads % config.num_kv_heads == 0
    for index in (0, config.num_layers - 1):
        for stack in shape.layer(config, index).linears.values():
            assert stack.width % max(shape.linears.group_size, 64) == 0


def test_bonsai_takes_the_bytes_that_its_card_tells() -> None:
    """Ternary codes and a scale for 128 of them: 436 and 1,020 MiB, norms apart."""
    for name, mib in (("bonsai-1.7b", 436), ("bonsai-4b", 1020)):
        assert SHAPES[name].parameters * (2 + 16 / 128) / 8 / 2**20 == pytest.approx(mib, rel=3e-3)


def test_a_description_is_the_bundle_but_for_its_files(
    tiny: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = tiny.path.name
    shape = SHAPES[name]
    model = tiny.model
    sizes = {field: getattr(model, field) for field in SIZES}
    small = replace(shape, config=replace(shape.config, longest_context=300, **sizes))
    monkeypatch.setitem(SHAPES, name, small)
    described, written = describe_synthetic(name).manifest, tiny.manifest
    assert described.files["weights.bin"].bytes == written.files["weights.bin"].bytes
    assert replace(described, files={}) == replace(written, files={})


def test_the_engines_agree_on_it(tiny: Bundle) -> None:
    pytest.importorskip("onnxruntime")
    assert verify(tiny, windows=2).ok


def test_codes_and_scales_are_what_export_would_write(tiny: Bundle) -> None:
    shape = SHAPES[tiny.path.name]
    tables = {node.name: node for node in tiny.nodes("verify")}
    linear = tables["layers.1.down"]
    assert linear.op == ("DualPlaneLinear" if tiny.model.weights == "nested" else "TernaryLinear")
    assert linear.attributes["group_size"] == shape.linears.group_size
    assert tables["embedding"].attributes["kind"] == shape.tables.kind
    for name, packed in tiny.weights.items():
        plane = name.rpartition(".")[2]
        bits = CODE_BITS.get({"base": "dual", "refinement": "dual"}.get(plane, plane))
        if bits is not None:
            codes = unpack_weight(packed, len(packed) * 8, packed.shape[1] * 32 // bits, bits)
            low, high = {2: (-1, 1), 4: (-8 + (plane == "base"), 7), 8: (-127, 127)}[bits]
            assert (codes.min(), codes.max()) == (low, high)
            if name.startswith(("embedding", "head")):
                assert not codes[tiny.model.vocab_size :].any()
        elif plane == "scales":
            assert (unpack_scales(packed, 128) > 0).all()
    padding = tiny.weights["embedding.scales"][-1, :, tiny.model.vocab_size % 8 :]
    assert not padding.any()


def test_what_each_model_has(tiny: Bundle) -> None:
    name = tiny.path.name
    has = {key.removeprefix("layers.0.") for key in tiny.tensors}
    assert ("attention_sub_norm" in has, "mlp_sub_norm" in has) == (name == "bitnet-2b",) * 2
    assert ("q_norm" in has) == name.startswith("bonsai")
    assert ("head.base" in tiny.tensors) == (name == "llama-2-7b")
    assert tiny.model.kv == ("nested" if name == "llama-2-7b" else "fp16")
    assert tiny.decoding.block == SHAPES[name].block
    gates = [node for node in tiny.nodes("draft") if node.op == "GatedActQuant"]
    assert {node.attributes["activation"] for node in gates} == {
        "relu2" if name == "bitnet-2b" else "silu"
    }


def test_a_token_is_its_number(tiny: Bundle) -> None:
    tokenizer = Tokenizer.load(tiny.file("tokenizer.json"))
    assert tokenizer.vocab_size == tiny.model.vocab_size
    assert tokenizer.decode([3, 300]) == " 3 300"


def test_the_same_name_gives_the_same_bytes(tiny: Bundle, tmp_path: Path) -> None:
    again = tiny_synthetic(tmp_path / tiny.path.name, tiny.path.name)
    assert again.manifest.files == tiny.manifest.files


def test_weights_keep_activations_in_range(tiny: Bundle) -> None:
    """Random weights must not overflow, which would send steps down other paths."""
    from bitmtp_edge.decode.window import causal_window
    from bitmtp_edge.engines.base import ReplayState
    from bitmtp_edge.engines.cpu import CpuEngine

    with CpuEngine(tiny, threads=1) as engine:
        state = ReplayState(9, 9, engine.segment, "verify", True)
        logits = engine.replay(state, causal_window(list(range(9)), 0, [], 9, 9, 9)).logits
    assert logits is not None and np.isfinite(logits).all()
    assert 0.1 < logits[:, :300].std() < 10


def test_what_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no shape 'gpt-5': choose bitnet-2b or bonsai-1\.7b or"):
        write_synthetic("gpt-5", tmp_path / "a")
    monkeypatch.setattr(
        target_folder.shutil, "disk_usage", lambda path: SimpleNamespace(free=3 << 30)
    )
    with pytest.raises(UserError, match=r"the bundle needs 65\d\d MiB, the disk has 3072 MiB"):
        write_synthetic("llama-2-7b", tmp_path / "b")
    assert list(tmp_path.iterdir()) == []
