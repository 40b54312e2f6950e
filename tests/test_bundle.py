"""Bundle.open: what it takes, and the one line for everything else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitmtp_edge.bundle import BUNDLE_FILE, Bundle, Manifest
from bitmtp_edge.errors import UserError
from bitmtp_edge.records import read_record

from .damage import Edit, edit, link_copy, replace_file

FUZZ = Path(__file__).with_name("fuzz_bundle.py")
FUZZ_CASES = 400


@pytest.fixture
def folder(tiny_bundle: Bundle, tmp_path: Path) -> Path:
    return link_copy(tiny_bundle.path, tmp_path / "bundle")


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        Bundle.open(path)
    line = str(caught.value)
    assert "\n" not in line
    return line


# ---- what opens ----------------------------------------------------------------------------------


def test_a_copy_opens(folder: Path, tiny_bundle: Bundle) -> None:
    opened = Bundle.open(folder)
    assert opened.manifest == tiny_bundle.manifest
    assert opened.nodes("draft") == tiny_bundle.nodes("draft")


def test_the_manifest_reads_back_and_is_deterministic(tiny_bundle: Bundle) -> None:
    text = tiny_bundle.manifest.to_json()
    assert text == (tiny_bundle.path / BUNDLE_FILE).read_text()
    assert read_record(Manifest, json.loads(text), "again").to_json() == text


def test_weights_are_read_only_views_of_the_file(tiny_bundle: Bundle) -> None:
    data = tiny_bundle.file("weights.bin").read_bytes()
    assert tiny_bundle.weights.keys() == tiny_bundle.tensors.keys()
    for name, array in tiny_bundle.weights.items():
        entry = tiny_bundle.tensors[name]
        assert array.shape == entry.shape and array.dtype == entry.dtype
        assert array.tobytes() == data[entry.offset : entry.offset + entry.bytes]
        assert array.ctypes.data % 256 == 0
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_a_file_that_is_not_listed(tiny_bundle: Bundle) -> None:
    with pytest.raises(UserError, match=r"lists no notes\.txt"):
        tiny_bundle.file("notes.txt")


def test_a_link_inside_the_folder_is_taken(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "real.json")
    (folder / "tokenizer.json").symlink_to("real.json")
    Bundle.open(folder)


# ---- the folder and its JSON ---------------------------------------------------------------------


def test_no_folder(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is not a bundle" in refusal(tmp_path / "file")


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    assert f"has no {BUNDLE_FILE}" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b'{"version": ' + b"9" * 10_000 + b"}", "is not JSON"),
        (b"\xff\xfe{}", "is not UTF-8"),
        (b"[]", "is not a bitmtp-edge bundle"),
        (b"null", "is not a bitmtp-edge bundle"),
        (b"{}", "is not a bitmtp-edge bundle"),
        (b'{"format": "other"}', "is not a bitmtp-edge bundle"),
        (b'{"format": "bitmtp-bundle"}', "bundle version"),
        (b'{"format": "bitmtp-bundle", "version": 1}', "bundle version 1, this SDK reads 2"),
        (b'{"format": "bitmtp-bundle", "version": true}', "bundle version"),
        (
            b'{"format": "bitmtp-bundle", "version": ' + b"[" * 900 + b"]" * 900 + b"}",
            "bundle version",
        ),
        (b'{"format": "bitmtp-bundle", "version": 2}', "field 'sdk' is missing"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_manifest_text(folder: Path, data: bytes, words: str) -> None:
    (folder / BUNDLE_FILE).write_bytes(data)
    line = refusal(folder)
    assert words in line and BUNDLE_FILE in line


# ---- fields --------------------------------------------------------------------------------------


def put(*path: Any, value: Any) -> Edit:
    """An edit that sets one place."""

    def change(manifest: dict[str, Any]) -> None:
        holder: Any = manifest
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value

    return change


def drop(*path: Any) -> Edit:
    def change(manifest: dict[str, Any]) -> None:
        holder: Any = manifest
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]

    return change


HUGE = 10**30
FIRST_TENSOR = "embedding.base"
TENSOR = ("tensors", FIRST_TENSOR)
VERIFY = ("graphs", "verify")
QKV, ATTENTION, GATE = 2, 3, 7  # nodes of the first layer

FIELDS: list[tuple[Edit, str]] = [
    (drop("model", "name"), "model: field 'name' is missing"),
    (put("model", "colour", value=1), "model: unknown field 'colour'"),
    (put("colour", value=1), "unknown field 'colour'"),
    (put("model", value=[]), "model: expected an object, found a list"),
    (put("model", "name", value=3), "model.name: expected str, found the number 3"),
    (put("model", "name", value="\ud800"), "is not valid Unicode"),
    (put("model", "vocab_size", value="301"), "model.vocab_size: expected int, found a string"),
    (put("model", "vocab_size", value=True), "model.vocab_size: expected int, found a boolean"),
    (put("model", "vocab_size", value=301.0), "expected int, found the number 301.0"),
    (put("model", "tied_embeddings", value=1), "model.tied_embeddings: expected bool"),
    (put("replay", "segments", value=512), "replay.segments: expected a list"),
    (put("replay", "segments", value=[512, None]), "replay.segments[1]: expected int, found null"),
    (put("decoding", "kv4_from_segment", value="x"), "expected int or NoneType, found a string"),
    (put("tensors", value=[]), "tensors: expected an object"),
    (put(*VERIFY, value={}), "graphs['verify']: expected a list"),
    (put(*VERIFY, 0, "attributes", "rows", value=[]), "expected int or float or str"),
    (drop("graphs", "draft"), "graphs: expected draft and verify"),
    (put("graphs", "third", value=[]), "graphs: expected draft and verify"),
]
FIELDS += [
    (put("model", name, value=value), f"model.{name} is {value}, expected 1")
    for name in ("vocab_size", "num_layers", "num_kv_heads", "head_dim", "context")
    for value in (0, -1, 2**31, HUGE)
]
FIELDS += [
    (put("replay", name, value=value), f"replay.{name} is")
    for name in ("segments", "draft_widths", "verify_widths")
    for value in ([], [0], [-1, 1], [2, 1], [1, 1], [1, 2**31], [HUGE])
]
FIELDS += [
    (put("replay", "verify_widths", value=[2, 4]), "lacks width 1"),
    (put("decoding", "stop_ids", value=[2, 301]), "decoding.stop_ids: 301 is outside"),
    (put("decoding", "stop_ids", value=[-1]), "decoding.stop_ids: -1 is outside"),
    (put("decoding", "bos_id", value=HUGE), "decoding.bos_id: 1"),
    (put("decoding", "gamma", value=0), "decoding.gamma is 0"),
    (put("decoding", "recent_n", value=-1), "decoding.recent_n is -1"),
    (put("decoding", "kv4_from_segment", value=0), "decoding.kv4_from_segment is 0"),
    (put("decoding", "policy", value="magic"), "decoding.policy is 'magic', expected one of ar"),
    (put("decoding", "policy", value="hybrid"), "decoding.policy is 'hybrid'"),
    (put("decoding", "gamma", value=None), "decoding.policy is 'nested'"),
    (put("decoding", "block", value=4), "decoding.block is 4, but the model has 0 mask"),
    (put("decoding", "tau", value=0.5), "decoding.tau is 0.5, but the model has 0 mask"),
    (put("model", "mask_embeddings", value=-1), "model.mask_embeddings is -1, expected 0"),
    (put("model", "mask_embeddings", value=1), "decoding.block is null, but the model has 1 mask"),
    (put("model", "block_attention", value="none"), "model.block_attention is 'none', expected"),
]


def masked(block: Any = 4, tau: Any = 0.9, min_prefix: Any = 2, masks: int = 1) -> Edit:
    """A bundle that says it has trained masks, without the tensor."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["model"]["mask_embeddings"] = masks
        manifest["decoding"] |= {"block": block, "tau": tau, "min_prefix": min_prefix}

    return change


FIELDS += [
    (masked(block=1), "decoding.block is 1, expected 2 or more"),
    (masked(block=5, masks=3), "decoding.block is 5, expected 2 or more, and a mask embedding"),
    (masked(tau=0.0), "decoding.tau is 0.0, expected above 0"),
    (masked(tau=1.5), "decoding.tau is 1.5, expected above 0"),
    (masked(tau=float("nan")), "decoding.tau is nan, expected above 0"),
    (masked(min_prefix=0), "decoding.min_prefix is 0, expected 1 .. 4"),
    (masked(min_prefix=5), "decoding.min_prefix is 5, expected 1 .. 4"),
    (masked(tau=None), "decoding.tau is null, but the model has 1 mask"),
    (masked(), "tensors['mask_embeddings'] is missing, expected float32[1, 128]"),
    (masked(masks=3), "tensors['mask_embeddings'] is missing, expected float32[3, 128]"),
]

TENSORS: list[tuple[Edit, str]] = [
    (put(*TENSOR, "dtype", value="int8"), "dtype 'int8', expected one of int32"),
    (put(*TENSOR, "dtype", value="object"), "dtype 'object'"),
    (put(*TENSOR, "shape", value=[]), "shape [], expected 1 to 3 axes"),
    (put(*TENSOR, "shape", value=[1] * 70), "expected 1 to 3 axes"),
    (put(*TENSOR, "shape", value=[38, 0, 8]), "none empty"),
    (put(*TENSOR, "shape", value=[-38, -16, 8]), "none empty"),
    (put(*TENSOR, "shape", value=[HUGE, HUGE, HUGE]), "do not hold int32"),
    (put(*TENSOR, "shape", value=[38, 16, 9]), "do not hold int32"),
    (put(*TENSOR, "bytes", value=4), "4 bytes do not hold"),
    (put(*TENSOR, "offset", value=-256), "offset -256 is unaligned or past the end"),
    (put(*TENSOR, "offset", value=4), "offset 4 is unaligned or past the end"),
    (put(*TENSOR, "offset", value=HUGE - HUGE % 256), "unaligned or past the end"),
]


def test_a_tensor_past_the_end(folder: Path) -> None:
    size = (folder / "weights.bin").stat().st_size
    edit(folder, put(*TENSOR, "offset", value=size // 256 * 256))
    assert "past the end of weights.bin" in refusal(folder)


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


@pytest.mark.parametrize(
    ("change", "words"), FIELDS + TENSORS + GRAPHS, ids=[w for _, w in FIELDS + TENSORS + GRAPHS]
)
def test_fields(folder: Path, change: Edit, words: str) -> None:
    line = refusal(edit(folder, change))
    assert words in line
    assert line.startswith(f"{folder / BUNDLE_FILE}: ") or f"{BUNDLE_FILE}." in line


# ---- files ---------------------------------------------------------------------------------------

FILES = ("weights.bin", "draft.onnx", "verify.onnx", "tokenizer.json")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"{folder / name} is missing" in refusal(folder)


@pytest.mark.parametrize("name", FILES)
def test_an_unlisted_file(folder: Path, name: str) -> None:
    assert f"{name} is not listed" in refusal(edit(folder, drop("files", name)))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["shorter", "longer", "empty"])
def test_a_file_of_another_size(folder: Path, name: str, change: str) -> None:
    data = (folder / name).read_bytes()
    replace_file(folder, name, {"shorter": data[:-1], "longer": data + b"\0", "empty": b""}[change])
    assert "truncated or changed" in refusal(folder)


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    replace_file(folder, name, bytes(data))
    assert "SHA-256 differs" in refusal(folder)
    Bundle.open(folder, check_hashes=False)


def test_a_folder_in_a_files_place(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").mkdir()
    assert "is missing" in refusal(folder)
    assert "is missing" in refusal(edit(folder, put("files", "", value={"bytes": 1, "sha256": ""})))


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "/etc/hostname", "..\\x", "a\\b", "a\0b", ".."],
    ids=repr,
)
def test_names_that_escape(folder: Path, name: str) -> None:
    (folder.parent / "x").write_text("x")
    line = refusal(edit(folder, put("files", name, value={"bytes": 1, "sha256": ""})))
    assert f"files: {name!r} leaves the bundle's folder" in line


def test_a_link_out_of_the_folder(folder: Path) -> None:
    outside = folder.parent / "tokenizer.json"
    (folder / "tokenizer.json").rename(outside)
    (folder / "tokenizer.json").symlink_to(outside)
    assert "'tokenizer.json' leaves the bundle's folder" in refusal(folder)


def test_links_in_a_circle(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("tokenizer.json")
    assert re.search("cannot be looked up|is missing", refusal(folder))


@pytest.mark.parametrize("name", ["x" * 5000, "\ud800"], ids=["long", "half a surrogate pair"])
def test_names_that_no_system_takes(folder: Path, name: str) -> None:
    line = refusal(edit(folder, put("files", name, value={"bytes": 1, "sha256": ""})))
    assert re.search("cannot be looked up|is not valid Unicode", line)


# ---- anything ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", ["tiny_bundle", "fp16_bundle"])
def test_no_single_edit_does_more_than_a_refusal(
    kv: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A crash or another exception ends the process, and its last case is the culprit."""
    bundle: Bundle = request.getfixturevalue(kv)
    seed = os.environ.get("BITMTP_TEST_SEED", "1")
    done = subprocess.run(
        [sys.executable, FUZZ, bundle.path, tmp_path / "copy", seed, str(FUZZ_CASES)],
        capture_output=True,
        text=True,
    )
    cases = done.stdout.splitlines()
    assert done.returncode == 0, f"{done.returncode} at {cases[-1:]}\n{done.stderr[-2000:]}"
    opened, ran = map(int, re.findall(r"\d+", cases[-1]))
    assert 0 < ran < opened < FUZZ_CASES // 2


def test_weights_are_as_written(folder: Path, tiny_bundle: Bundle) -> None:
    """A change that bundle.json agrees with opens, and shows in the weights."""
    data = bytearray((folder / "weights.bin").read_bytes())
    entry = tiny_bundle.tensors["final_norm"]
    data[entry.offset : entry.offset + 4] = np.float32(5).tobytes()
    replace_file(folder, "weights.bin", bytes(data), listed=True)
    assert Bundle.open(folder).weights["final_norm"][0] == 5
