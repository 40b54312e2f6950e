"""Graphs of bundle.json that an engine could not run, or that contradict what the bundle says of
its model: one line for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.bundle import BUNDLE_FILE

from .damage import Edit, drop, edit, put, refusal

HUGE = 10**30
FIRST_TENSOR = "embedding.base"
VERIFY = ("graphs", "verify")
QKV, ATTENTION, GATE = 2, 3, 7  # nodes of the first layer


def _forward(manifest: dict[str, Any]) -> None:
    nodes = manifest["graphs"]["verify"]
    nodes[1], nodes[2] = nodes[2], nodes[1]


def _cycle(manifest: dict[str, Any]) -> None:
    node = manifest["graphs"]["verify"][QKV]
    node["inputs"][0] = node["outputs"][0]


def _twice(manifest: dict[str, Any]) -> None:
    nodes = manifest["graphs"]["verify"]
    nodes.insert(1, dict(nodes[0], name="again"))


def _over_a_weight(manifest: dict[str, Any]) -> None:
    manifest["graphs"]["verify"][QKV]["outputs"][0] = FIRST_TENSOR


def _over_an_input(manifest: dict[str, Any]) -> None:
    manifest["graphs"]["verify"][QKV]["outputs"][0] = "token_ids"


def _output_of_another(manifest: dict[str, Any]) -> None:
    manifest["graphs"]["verify"][QKV]["outputs"][0] = "probability"


def _one_layer_more(manifest: dict[str, Any]) -> None:
    manifest["model"]["num_layers"] += 1


def _same_planes(manifest: dict[str, Any]) -> None:
    first, second = (n for n in manifest["graphs"]["draft"] if n["op"] == "NestedKVAttention")
    second["inputs"][5] = first["inputs"][5]


def _uneven_heads(manifest: dict[str, Any]) -> None:
    for role in ("draft", "verify"):
        for node in manifest["graphs"][role]:
            if node["op"] == "NestedKVAttention":
                node["attributes"]["num_kv_heads"] = 3
    manifest["model"]["num_kv_heads"] = 3


def _long_context(manifest: dict[str, Any]) -> None:
    manifest["model"]["context"] = 100_000


def _other_head(manifest: dict[str, Any]) -> None:
    """The heads read another table than the embedding, one as large."""
    manifest["tensors"]["head.base"] = dict(manifest["tensors"]["embedding.base"])
    for role in ("draft", "verify"):
        head = manifest["graphs"][role][-1]
        head["inputs"] = [name.replace("embedding.base", "head.base") for name in head["inputs"]]


def _same_drafts(manifest: dict[str, Any]) -> None:
    manifest["graphs"]["draft"] = manifest["graphs"]["verify"]


GRAPHS: list[tuple[Edit, str]] = [
    (put(*VERIFY, value=[]), "no node makes the output 'next_token_ids'"),
    (drop(*VERIFY, -1), "no node makes the output 'next_token_ids'"),
    (put(*VERIFY, -1, "outputs", value=["next_token_ids", "probability"]), "output 'logits'"),
    (put(*VERIFY, -1, "outputs", 0, value="logits"), "'logits' is a GreedyHead's to make"),
    (put(*VERIFY, QKV, "op", value="Softmax"), "unknown operator 'Softmax'"),
    (put(*VERIFY, QKV, "inputs", value=[]), "input 'codes' is missing"),
    (put(*VERIFY, QKV, "inputs", 2, value=""), "input 'base' is missing"),
    (put(*VERIFY, QKV, "inputs", 2, value="nothing"), "input 'nothing' is neither a weight nor"),
    (put(*VERIFY, QKV, "inputs", value=["a"] * 9), "9 inputs, DualPlaneLinear takes at most 6"),
    (put(*VERIFY, QKV, "outputs", value=[]), "output 'out' is missing"),
    (put(*VERIFY, QKV, "outputs", value=["a", "b"]), "2 outputs, DualPlaneLinear takes at most 1"),
    (drop(*VERIFY, QKV, "attributes", "rows"), "attribute 'rows' is None, expected int"),
    (put(*VERIFY, QKV, "attributes", "rows", value="512"), "'rows' is '512', expected int"),
    (put(*VERIFY, QKV, "attributes", "rows", value=0), "'rows' is 0, expected 1"),
    (put(*VERIFY, QKV, "attributes", "rows", value=-512), "'rows' is -512, expected 1"),
    (put(*VERIFY, QKV, "attributes", "rows", value=2**32 + 512), "expected 1 .. 2147483647"),
    (put(*VERIFY, QKV, "attributes", "group_size", value=32), "expected one of 0, 64, 128"),
    (put(*VERIFY, QKV, "attributes", "axis", value=1), "unknown attribute 'axis'"),
    (put(*VERIFY, 0, "attributes", "kind", value="int3"), "expected one of fp16, int8"),
    (put(*VERIFY, 0, "attributes", "rows", value=300), "'rows' is 300, the model says 301"),
    (put(*VERIFY, GATE, "attributes", "activation", value="gelu"), "expected one of silu, relu2"),
    (put(*VERIFY, GATE, "attributes", "epsilon", value=float("nan")), "expected a finite number"),
    (put(*VERIFY, GATE, "attributes", "epsilon", value=HUGE), "expected a finite number"),
    (put(*VERIFY, ATTENTION, "attributes", "kv", value="fp16"), "the model says 'nested'"),
    (put(*VERIFY, ATTENTION, "attributes", "head_dim", value=32), "the model says 64"),
    (put(*VERIFY, ATTENTION, "inputs", 7, value=""), "input 'history_scale' is ''"),
    (put(*VERIFY, ATTENTION, "inputs", 4, value="final_norm"), "is no rotary table of 1024"),
    (_forward, "is neither a weight nor made by an earlier node"),
    (_cycle, "is neither a weight nor made by an earlier node"),
    (_twice, "output 'embedding.out' exists already"),
    (_over_a_weight, f"output '{FIRST_TENSOR}' exists already"),
    (_over_an_input, "output 'token_ids' exists already"),
    (_output_of_another, "'probability' is a GreedyHead's to make"),
    (_one_layer_more, "2 attention nodes, model.num_layers is 3"),
    (_same_planes, "expected 'layers.1.history' of layer 1"),
    (_uneven_heads, "4 heads over 3 KV heads of 64"),
    (_long_context, "is no rotary table of 100000 positions"),
    (put("model", "intermediate_size", value=100), "'width' is 192, the model says 100"),
    (put("model", "weights", value="ternary"), "model.weights is 'ternary', but its graphs"),
    (put("model", "tied_embeddings", value=False), "tied_embeddings is False, but its graphs"),
    (_other_head, "tied_embeddings is True, but its graphs say False"),
    (put("model", "draft_rows_final", value=True), "draft_rows_final is True, but its graphs"),
    (_same_drafts, "draft_rows_final is False, but its graphs say True"),
    (put("operators", value=["GreedyHead"]), "operators is ['GreedyHead'], but its graphs say ["),
]


@pytest.mark.parametrize(("change", "words"), GRAPHS, ids=[w for _, w in GRAPHS])
def test_graphs(bundle_copy: Path, change: Edit, words: str) -> None:
    line = refusal(edit(bundle_copy, change))
    assert words in line
    assert line.startswith(f"{bundle_copy / BUNDLE_FILE}: ") or f"{BUNDLE_FILE}." in line
