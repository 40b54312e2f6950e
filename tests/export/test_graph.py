"""The graphs: which planes each role reads, and that ONNX Runtime computes the right model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bitmtp_edge.bundle import GRAPH_FILES, Bundle
from bitmtp_edge.engines.base import ReplayState, Role, Window
from bitmtp_edge.engines.onnxruntime import OnnxRuntimeEngine
from bitmtp_edge.export.checkpoints import open_checkpoint
from bitmtp_edge.export.pipeline import export_bundle
from bitmtp_edge.export.reference_model import reference_logits
from bitmtp_edge.operators import STEP_INPUTS, STEP_OUTPUTS

from .tiny_models import LAYERS, VOCABULARY, Floats, write_folder

LAYER_OPERATORS = [
    "RmsNormQuant",
    "DualPlaneLinear",
    "NestedKVAttention",
    "DualPlaneLinear",
    "RmsNormQuant",
    "DualPlaneLinear",
    "GatedActQuant",
    "DualPlaneLinear",
]


@pytest.mark.parametrize("role", GRAPH_FILES)
def test_nodes(role: str, tiny_bundle: Bundle) -> None:
    nodes = tiny_bundle.nodes(role)
    expected = ["TokenEmbedding", *LAYER_OPERATORS * LAYERS, "RmsNormQuant", "GreedyHead"]
    assert [node.op for node in nodes] == expected
    assert len({node.name for node in nodes}) == len(nodes)
    for node in nodes:
        if node.op in ("DualPlaneLinear", "GreedyHead"):
            assert bool(node.input("refinement")) == (role == "verify"), node.name
    assert nodes[0].input("refinement") == "embedding.refinement"
    residuals = [
        node.name for node in nodes if node.op == "DualPlaneLinear" and node.input("residual")
    ]
    assert residuals == [f"layers.{i}.{name}" for i in range(LAYERS) for name in ("o", "down")]
    assert nodes[-1].input("table") == nodes[0].input("table") == "embedding.base"


def test_the_draft_is_a_subset_of_the_verifier(tiny_bundle: Bundle) -> None:
    """One stored copy: both roles name the same base planes, and the draft adds nothing."""
    draft, verify = (
        {name for node in tiny_bundle.nodes(role) for name in node.inputs if name}
        for role in ("draft", "verify")
    )
    assert draft < verify
    assert {name.rpartition(".")[2] for name in verify - draft} == {"refinement"}


@pytest.mark.parametrize("role", GRAPH_FILES)
def test_the_onnx_file(role: str, tiny_bundle: Bundle) -> None:
    import onnx

    model = onnx.load(tiny_bundle.path / GRAPH_FILES[role], load_external_data=False)
    graph = model.graph
    assert [node.name for node in graph.node] == [node.name for node in tiny_bundle.nodes(role)]
    planes = ("history", "history_refinement", "history_scale")
    history = [f"layers.{i}.{plane}" for i in range(LAYERS) for plane in planes]
    assert [value.name for value in graph.input] == [*STEP_INPUTS, *history]
    rows = ("new_rows", "new_refinement", "new_scale")
    new = [f"layers.{i}.{plane}" for i in range(LAYERS) for plane in rows]
    assert [value.name for value in graph.output] == [*STEP_OUTPUTS, *new]
    kinds = {"int32": 6, "float16": 10, "float32": 1}
    for tensor in graph.initializer:
        entry = tiny_bundle.tensors[tensor.name]
        place = {item.key: item.value for item in tensor.external_data}
        assert place == {
            "location": "weights.bin",
            "offset": str(entry.offset),
            "length": str(entry.bytes),
        }
        assert tuple(tensor.dims) == entry.shape and tensor.data_type == kinds[entry.dtype]
    functions = {(function.domain, function.name) for function in model.functions}
    assert {(node.domain, node.op_type) for node in graph.node} == functions
    domains = {"", *(domain for domain, _ in functions)}
    assert {entry.domain for entry in model.opset_import} == domains


def _step(engine: OnnxRuntimeEngine, role: Role, tokens: list[int]) -> Floats:
    """Logits of every token of one causal window at the start of a text."""
    width = len(tokens)
    assert width <= 31
    slots = np.arange(width, dtype=np.int32)
    mask = ((1 << (slots + 1)) - 1).astype(np.int32)[:, None]
    state = ReplayState(width, width, engine.segment, role, logits=True)
    output = engine.replay(state, Window(np.array(tokens, np.int32), slots, mask, 0, slots))
    assert output.logits is not None
    assert np.array_equal(output.token_ids[:, 0], output.logits.argmax(1))
    return output.logits


@pytest.mark.parametrize("kv", ["nested", "fp16"])
@pytest.mark.parametrize(
    ("family", "rope"),
    [
        ("llama", None),
        ("qwen2", {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
        ("qwen3", None),
    ],
)
def test_onnxruntime_computes_the_checkpoint(
    family: str, rope: dict[str, object] | None, kv: str, tmp_path: Path
) -> None:
    tied = family == "llama"
    source = write_folder(tmp_path / "m", family, tie_word_embeddings=tied, rope_scaling=rope)
    bundle = export_bundle(source.path, tmp_path / "b", kv=kv)
    tokens = np.random.default_rng(3).integers(0, VOCABULARY, 24).tolist()
    with open_checkpoint(source.path) as checkpoint:
        expected = np.concatenate(list(reference_logits(checkpoint, [tokens])))
    error = {}
    for role in ("verify", "draft"):
        with OnnxRuntimeEngine(bundle) as engine:
            logits = _step(engine, role, tokens)
        error[role] = np.linalg.norm(logits - expected) / np.linalg.norm(expected)
    assert error["verify"] < 0.04, error
    assert error["verify"] < error["draft"] / 2 < 0.2, error
