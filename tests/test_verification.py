"""verify: right engines agree, a broken operator is named, contradicting files are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines import cpu
from bitmtp_edge.engines.base import StepOutput, Window
from bitmtp_edge.engines.kv_buffer import aligned_bytes
from bitmtp_edge.engines.operator_records import build_call
from bitmtp_edge.engines.registry import ENGINES
from bitmtp_edge.engines.step_layout import StepInputs
from bitmtp_edge.errors import UserError
from bitmtp_edge.export.pipeline import export_bundle
from bitmtp_edge.operators import Node
from bitmtp_edge.verification import compare, verify

from .damage import link_copy, replace_file
from .export.tiny_models import write_folder

NODES = 2 * 8 + 3  # of a tiny model

MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": ({"family": "llama"}, {}),
    "untied": ({"family": "llama", "tie_word_embeddings": False}, {}),
    "qwen2 (bias)": ({"family": "qwen2"}, {}),
    "qwen3 (norms)": ({"family": "qwen3", "tie_word_embeddings": False}, {}),
    "fp16 KV": ({"family": "llama"}, {"kv": "fp16"}),
    "short context": ({"family": "llama", "max_position_embeddings": 16}, {}),
}


@pytest.mark.parametrize("model", MODELS)
def test_engines_agree(model: str, tmp_path: Path) -> None:
    checkpoint, export = MODELS[model]
    write_folder(tmp_path / "source", **checkpoint)
    bundle = export_bundle(tmp_path / "source", tmp_path / "bundle", **export)
    lines: list[str] = []
    report = verify(bundle, windows=4, progress=lines.append)
    assert report.ok and report.reference == "onnxruntime"
    assert report.skipped == dict.fromkeys(("tensorrt", "cuda"), "no CUDA device")
    (cpu_report,) = report.engines
    assert cpu_report.fault is None
    assert (cpu_report.engine, cpu_report.windows, cpu_report.operators) == ("cpu", 4, 4 * NODES)
    assert cpu_report.same_ids <= cpu_report.outputs
    assert len(lines) == 5 and lines[0] == "cpu: 4 windows"


def test_a_seed_repeats(tiny_bundle: Bundle) -> None:
    told: list[list[str]] = [[], [], []]
    for lines, seed in zip(told, (3, 3, 4), strict=True):
        verify(tiny_bundle, windows=3, seed=seed, progress=lines.append)
    assert told[0] == told[1] != told[2]


# ---- a fault in one operator ---------------------------------------------------------------------

Change = Callable[[Any], Any]


def _copy(array: Any) -> Any:
    """On the alignment that the library asks for."""
    copy = aligned_bytes(array.nbytes, "a copy").view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _doubled(scales: Any) -> Any:
    scales = _copy(scales)
    scales[0] *= 2
    return scales


def _swapped(table: Any) -> Any:
    """Two rows of the first tile change places."""
    table = _copy(table)
    table[0][:, [0, 1]] = table[0][:, [1, 0]]
    return table


def _reversed(rows: Any) -> Any:
    return np.ascontiguousarray(rows[::-1])


TENSOR_FAULTS: list[tuple[str, str, Change]] = [
    ("embedding", "embedding.scales", _doubled),
    ("embedding", "embedding.refinement", lambda plane: _copy(~plane)),
    ("layers.0.attention_norm", "layers.0.attention_norm", lambda w: w * np.float32(1.1)),
    ("layers.0.qkv", "layers.0.qkv.base", _swapped),
    ("layers.1.attention", "rotary", _reversed),
    ("layers.0.o", "layers.0.o.scales", _doubled),
    ("layers.1.gate_up", "layers.1.gate_up.refinement", _swapped),
    ("head", "embedding.base", _swapped),
]
ATTRIBUTE_FAULTS: list[tuple[str, str, Any]] = [
    ("layers.0.attention", "softmax_scale", 0.126),
    ("layers.1.gate", "activation", "relu2"),
    ("final_norm", "epsilon", 0.5),
]


def _break(
    monkeypatch: pytest.MonkeyPatch, node_name: str, change: Callable[[Node, dict[str, Any]], Node]
) -> None:
    """The CPU engine, not the reference, sees another node."""
    alive = []

    def build(node: Node, tensors: Any, m: int, h: int) -> Any:
        if node.name == node_name:
            tensors = dict(tensors)
            node = change(node, tensors)
            alive.append(tensors)
        return build_call(node, tensors, m, h)

    monkeypatch.setattr(cpu, "build_call", build)


def _named(bundle: Bundle, node_name: str) -> str:
    report = verify(bundle, windows=6)
    assert not report.ok
    fault = report.engines[0].fault
    assert fault is not None and "\n" not in fault
    (op,) = (node.op for node in bundle.nodes("verify") if node.name == node_name)
    assert f": {op} {node_name!r}: " in fault, fault
    return fault


@pytest.mark.parametrize(
    ("node_name", "tensor", "change"),
    TENSOR_FAULTS,
    ids=[f"{node} {tensor}" for node, tensor, _ in TENSOR_FAULTS],
)
def test_a_changed_tensor_is_named(
    tiny_bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    node_name: str,
    tensor: str,
    change: Change,
) -> None:
    def corrupt(node: Node, tensors: dict[str, Any]) -> Node:
        tensors[tensor] = change(tensors[tensor])
        return node

    _break(monkeypatch, node_name, corrupt)
    _named(tiny_bundle, node_name)


@pytest.mark.parametrize(("node_name", "attribute", "value"), ATTRIBUTE_FAULTS)
def test_a_changed_attribute_is_named(
    tiny_bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    node_name: str,
    attribute: str,
    value: Any,
) -> None:
    def corrupt(node: Node, tensors: dict[str, Any]) -> Node:
        return replace(node, attributes={**node.attributes, attribute: value})

    _break(monkeypatch, node_name, corrupt)
    _named(tiny_bundle, node_name)


def test_a_lost_residual_is_named(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupt(node: Node, tensors: dict[str, Any]) -> Node:
        return replace(node, inputs=node.inputs[:-1])

    _break(monkeypatch, "layers.1.down", corrupt)
    assert "out differs by" in _named(tiny_bundle, "layers.1.down")


def test_rows_promoted_to_the_wrong_place(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operator is right on what it gets."""
    promote = cpu.CpuEngine.promote

    def wrong(engine: cpu.CpuEngine, rows: Any, at: int) -> None:
        promote(engine, [0] * len(rows), at)

    monkeypatch.setattr(cpu.CpuEngine, "promote", wrong)
    fault = verify(tiny_bundle).engines[0].fault
    assert fault is not None
    assert "row 1 of 'layers.0.history' is not the one that was promoted" in fault


def test_a_window_that_the_step_did_not_get(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = StepInputs.take

    def wrong(inputs: StepInputs, window: Window) -> None:
        take(inputs, replace(window, positions=window.positions + np.int32(1)))

    monkeypatch.setattr(StepInputs, "take", wrong)
    fault = verify(tiny_bundle).engines[0].fault
    assert fault is not None and "the step's input 'positions' is not the window's" in fault


def test_engines_that_agree_on_no_token(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine returns is not what its last operator made."""
    output = cpu._Plan.output

    def wrong(plan: Any) -> StepOutput:
        made = output(plan)
        return replace(made, token_ids=(made.token_ids + 1) % 301)

    monkeypatch.setattr(cpu._Plan, "output", wrong)
    fault = verify(tiny_bundle).engines[0].fault
    assert fault is not None and "next tokens are the same though every operator agrees" in fault


# ---- one node's outputs --------------------------------------------------------------------------

HEAD = Node("GreedyHead", "head", ("c", "s", "t", "w"), ("ids", "p", "l"), {"top_k": 2})
LOGITS = np.array([[1, 5, 3, 2], [9, 9, 0, 0]], np.float32)
SHARES = np.array([[0.8, 0.1], [0.5, 0.5]], np.float32)


@pytest.mark.parametrize(
    ("ids", "fault"),
    [
        ([[1, 2], [0, 1]], None),
        ([[1, 2], [1, 0]], None),  # a tie
        ([[2, 1], [0, 1]], "short of the best"),
        ([[1, 2], [0, 2]], "short of the best"),
        ([[1, -1], [0, 1]], "token_ids has -1 .. 1"),
        ([[1, 2], [4, 0]], "token_ids has 0 .. 4, the vocabulary is 4"),
    ],
)
def test_token_ids(ids: list[list[int]], fault: str | None) -> None:
    want = {"ids": np.array([[1, 2], [0, 1]], np.int32), "p": SHARES, "l": LOGITS}
    got = {"ids": np.array(ids, np.int32), "p": SHARES}
    line = compare(HEAD, want, got)
    assert line is None if fault is None else line is not None and fault in line


@pytest.mark.parametrize("value", [0.81, float("nan"), float("inf")])
def test_probabilities(value: float) -> None:
    want = {"ids": np.array([[1, 2], [0, 1]], np.int32), "p": SHARES, "l": LOGITS}
    shares = SHARES.copy()
    shares[0, 0] = value
    line = compare(HEAD, want, {"ids": want["ids"], "p": shares})
    assert line is not None and line.startswith("probability differs by")


NORM = Node("RmsNormQuant", "n", ("h", "w"), ("codes", "scale"), {"width": 4, "epsilon": 1e-5})


def test_codes_may_be_off_by_one_and_scales_are_judged_alone() -> None:
    codes = np.array([[1, 2, -3, 127]], np.int8).view(np.int32)
    scale = np.array([1000, 0.5], np.float32)
    want = {"codes": codes, "scale": scale}
    near = np.array([[2, 1, -3, 126]], np.int8).view(np.int32)
    assert compare(NORM, want, {"codes": near, "scale": scale}) is None
    far = np.array([[3, 2, -3, 127]], np.int8).view(np.int32)
    assert "codes differ by up to 2" in str(compare(NORM, want, {"codes": far, "scale": scale}))
    off = scale * np.array([1, 1.001], np.float32)
    assert "scale differs" in str(compare(NORM, want, {"codes": codes, "scale": off}))


# ---- what is refused -----------------------------------------------------------------------------


def _change_graph(bundle: Bundle, folder: Path, change: Callable[[Any], object]) -> Bundle:
    import onnx

    copy = link_copy(bundle.path, folder)
    model = onnx.load(str(copy / "verify.onnx"), load_external_data=False)
    change(model.graph)
    replace_file(copy, "verify.onnx", model.SerializeToString(), listed=True)
    return Bundle.open(copy)


def _drop_last(graph: Any) -> None:
    del graph.node[-1]


def _other_input(graph: Any) -> None:
    graph.node[2].input[2] = "layers.1.qkv.base"


def _other_order(graph: Any) -> None:
    graph.node[2].input[0], graph.node[2].input[1] = graph.node[2].input[1], graph.node[2].input[0]


def _other_op(graph: Any) -> None:
    graph.node[2].op_type = "TernaryLinear"


def _set(attribute: str, field: str, value: Any) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        for node in graph.node:
            for each in node.attribute:
                if each.name == attribute:
                    setattr(each, field, value)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_drop_last, "has 18 nodes, bundle.json lists 19"),
        (_other_input, "is not what bundle.json lists as 'layers.0.qkv'"),
        (_other_order, "is not what bundle.json lists as 'layers.0.qkv'"),
        (_other_op, "is not what bundle.json lists as 'layers.0.qkv'"),
        (_set("softmax_scale", "f", 0.2), "lists as 'layers.0.attention'"),
        (_set("rows", "i", 1), "lists as 'embedding'"),
        (_set("activation", "s", b"relu2"), "lists as 'layers.0.gate'"),
        (_set("ports", "s", b"token_ids,table"), "lists as 'embedding'"),
    ],
)
def test_graph_files_that_bundle_json_contradicts(
    tiny_bundle: Bundle, tmp_path: Path, change: Callable[[Any], None], words: str
) -> None:
    bundle = _change_graph(tiny_bundle, tmp_path / "copy", change)
    with pytest.raises(UserError) as caught:
        verify(bundle, windows=1)
    assert words in str(caught.value) and "verify.onnx" in str(caught.value)


def test_a_graph_file_that_is_not_onnx(tiny_bundle: Bundle, tmp_path: Path) -> None:
    copy = link_copy(tiny_bundle.path, tmp_path / "copy")
    replace_file(copy, "verify.onnx", b"no protobuf", listed=True)
    with pytest.raises(UserError, match=r"verify\.onnx is not an ONNX file"):
        verify(Bundle.open(copy), windows=1)


def test_a_missing_body(tiny_bundle: Bundle, tmp_path: Path) -> None:
    import onnx

    copy = link_copy(tiny_bundle.path, tmp_path / "copy")
    model = onnx.load(str(copy / "verify.onnx"), load_external_data=False)
    del model.functions[:]
    replace_file(copy, "verify.onnx", model.SerializeToString(), listed=True)
    with pytest.raises(UserError, match=r"ONNX Runtime does not take .*verify\.onnx"):
        verify(Bundle.open(copy), windows=1)


def test_an_engine_that_does_not_work_here_is_skipped(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENGINES, "cpu", replace(ENGINES["cpu"], unavailable=lambda: "no library"))
    report = verify(tiny_bundle, windows=1)
    assert report.ok and report.engines == []
    assert report.skipped == {
        "tensorrt": "no CUDA device",
        "cuda": "no CUDA device",
        "cpu": "no library",
    }
