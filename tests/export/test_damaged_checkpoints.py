"""Damaged, truncated, missing and mismatched checkpoints: one line each, and nothing written."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.pipeline import export_bundle
from bitmtp_edge.session import Session

from .tiny_models import (
    VOCABULARY,
    Tiny,
    encode_tensor,
    write_folder,
    write_gguf,
    write_safetensors,
)

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
NORM = "model.layers.1.input_layernorm.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"


def _refused(source: Path, message: str) -> None:
    target = source.with_name("target")
    with pytest.raises(UserError, match=message) as caught:
        export_bundle(source, target)
    assert "\n" not in str(caught.value)
    assert not [path for path in target.parent.iterdir() if path.name.startswith("target")]


def _edit_header(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def _rewrite(tiny: Tiny, **changes: Any) -> None:
    found = {
        name: values for name, values in tiny.tensors.items() if changes.get(name, 1) is not None
    }
    found.update({name: values for name, values in changes.items() if values is not None})
    write_safetensors(tiny.path / WEIGHTS, found)


# ---- folders ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Tiny:
    return write_folder(tmp_path / "model")


@pytest.fixture
def sharded(tmp_path: Path) -> Tiny:
    return write_folder(tmp_path / "model", shards=3)


def test_no_such_source(tmp_path: Path) -> None:
    _refused(tmp_path / "nothing", "no such file or folder")
    os.mkfifo(tmp_path / "pipe")
    _refused(tmp_path / "pipe", "neither a file nor a folder")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "not a Hugging Face model folder"),
        (WEIGHTS, "only safetensors weights can be read"),
        ("tokenizer.json", "has no tokenizer.json"),
    ],
)
def test_a_missing_file(name: str, message: str, folder: Tiny) -> None:
    (folder.path / name).unlink()
    _refused(folder.path, message)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "[" * 100000, "\xff"])
def test_a_config_that_is_no_object(text: str, folder: Tiny) -> None:
    (folder.path / "config.json").write_text(text, encoding="latin-1")
    _refused(folder.path, "not valid JSON|expected a JSON object")


@pytest.mark.parametrize("keep", [0, 7, 9, 500])
def test_a_safetensors_file_cut_in_its_header(keep: int, folder: Tiny) -> None:
    path = folder.path / WEIGHTS
    path.write_bytes(path.read_bytes()[:keep])
    _refused(folder.path, "truncated or not a safetensors file")


def test_a_safetensors_file_cut_in_its_data(folder: Tiny) -> None:
    path = folder.path / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1])
    _refused(folder.path, "truncated; download it again")


def test_a_header_length_beyond_all_bounds(folder: Tiny) -> None:
    path = folder.path / WEIGHTS
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])
    _refused(folder.path, "its header of 18446744073709551615 bytes does not fit")


@pytest.mark.parametrize("header", [b"[]", b"{]", b"\xff\xfe", b"[" * 100000])
def test_a_header_that_is_no_object(header: bytes, folder: Tiny) -> None:
    (folder.path / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header)
    _refused(folder.path, "not a safetensors file")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"data_offsets": [0, 2]}, "2 bytes do not hold F16"),
        ({"data_offsets": [0, 1 << 62]}, "truncated"),
        ({"data_offsets": [8, 0]}, "must be whole numbers in order"),
        ({"data_offsets": [-8, 0]}, "must be whole numbers in order"),
        ({"data_offsets": [0]}, "damaged header entry"),
        ({"shape": [1 << 40, 128]}, "do not hold F16"),
        ({"shape": 128}, "damaged header entry"),
        ({"shape": [128.0]}, "must be whole numbers"),
        ({"dtype": "F8_E4M3"}, "dtype F8_E4M3; only F32, F16, BF16 can be read"),
        ({"dtype": 7}, "dtype 7"),
        ({"dtype": ["F16"]}, "dtype"),
    ],
)
def test_a_header_that_lies(entry: dict[str, Any], message: str, folder: Tiny) -> None:
    _edit_header(folder.path / WEIGHTS, lambda header: header[NORM].update(entry))
    _refused(folder.path, message)


def test_a_missing_tensor(folder: Tiny) -> None:
    _rewrite(folder, **{DOWN: None})
    _refused(folder.path, f"tensor {DOWN} is missing")


def test_a_tensor_of_another_shape(folder: Tiny) -> None:
    _rewrite(folder, **{DOWN: folder.tensors[DOWN].T})
    _refused(folder.path, r"has shape \(192, 128\), expected \(128, 192\)")


@pytest.mark.parametrize("name", [DOWN, NORM])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(name: str, value: float, folder: Tiny) -> None:
    broken = folder.tensors[name].copy()
    broken.flat[-1] = value
    _rewrite(folder, **{name: broken})
    _refused(folder.path, f"{name} holds values that are not finite")


def test_a_missing_head(folder: Tiny) -> None:
    text = json.dumps(folder.config | {"tie_word_embeddings": False})
    (folder.path / "config.json").write_text(text)
    _refused(folder.path, r"tensor lm_head\.weight is missing")


def test_a_config_that_promises_more_layers(folder: Tiny) -> None:
    text = json.dumps(folder.config | {"num_hidden_layers": 10**12})
    (folder.path / "config.json").write_text(text)
    _refused(folder.path, r"tensor model\.layers\.2\..* is missing")


def test_a_template_that_is_no_text(folder: Tiny) -> None:
    text = json.dumps({"chat_template": "\ud800"})
    (folder.path / "tokenizer_config.json").write_text(text)
    _refused(folder.path, "half a surrogate pair")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_position_embeddings": 1}, "context 1 is out of range"),
        ({"max_position_embeddings": 1 << 40}, "context 1099511627776 is out of range"),
        ({"rope_theta": 0.5}, r"rope_theta is 0\.5, expected more than 1"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 1e-320}}, "angles are not finite"),
    ],
)
def test_numbers_that_no_model_has(changes: dict[str, Any], message: str, folder: Tiny) -> None:
    (folder.path / "config.json").write_text(json.dumps(folder.config | changes))
    _refused(folder.path, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100000, r"tokenizer_config\.json is not JSON"),
        ('{"chat_template": "{% if %}"}', "the chat template has a syntax error in line 1"),
    ],
)
def test_a_broken_tokenizer_config(text: str, message: str, folder: Tiny) -> None:
    (folder.path / "tokenizer_config.json").write_text(text)
    _refused(folder.path, message)


def test_a_missing_shard(sharded: Tiny) -> None:
    (sharded.path / "model-00002-of-00003.safetensors").unlink()
    _refused(sharded.path, "this shard is missing")


def test_a_shard_without_its_tensor(sharded: Tiny) -> None:
    path = sharded.path / "model-00002-of-00003.safetensors"
    _edit_header(path, lambda header: header.pop(next(n for n in header if "layers" in n)))
    _refused(sharded.path, "is missing, which model.safetensors.index.json places there")


@pytest.mark.parametrize(
    "shard", ["../escape.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "a\\b", "a\0b"]
)
def test_an_index_that_leaves_the_folder(shard: str, sharded: Tiny) -> None:
    write_safetensors(sharded.path.parent / "escape.safetensors", sharded.tensors)
    index = json.loads((sharded.path / INDEX).read_text())
    index["weight_map"][DOWN] = shard
    (sharded.path / INDEX).write_text(json.dumps(index))
    _refused(sharded.path, "is not the name of a file in this folder")


@pytest.mark.parametrize("index", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "no"])
def test_an_index_without_a_map(index: str, sharded: Tiny) -> None:
    (sharded.path / INDEX).write_text(index)
    _refused(sharded.path, "weight_map must give|not valid JSON")


def test_a_tokenizer_of_a_larger_model(folder: Tiny) -> None:
    """An added token, such as a padding, may lie outside; one that was learnt may not."""
    path = folder.path / "tokenizer.json"
    value = json.loads(path.read_text())
    added = dict(value["added_tokens"][0], id=VOCABULARY, content="<|pad|>")
    value["added_tokens"].append(added)
    path.write_text(json.dumps(value))
    bundle = export_bundle(folder.path, folder.path.parent / "bundle")
    with Session.open(bundle.path, "cpu") as session:
        with pytest.raises(UserError, match=r"the text has token 301, '<\|pad\|>', and the model"):
            session.prompt_ids("a<|pad|>", raw=True)
        with pytest.raises(UserError, match="the text has token 301"):
            session.prompt_ids("a<|pad|>")
    value["model"]["vocab"]["zz"] = VOCABULARY + 1
    path.write_text(json.dumps(value))
    _refused(folder.path, "the tokenizer has 303 token ids, and the model only 301")


def test_more_layers_than_the_config_gives(folder: Tiny) -> None:
    text = json.dumps(folder.config | {"num_hidden_layers": 1})
    (folder.path / "config.json").write_text(text)
    _refused(folder.path, "gives 1 layers, and there is a tensor model.layers.1.mlp.down_proj")


def test_a_stop_token_outside_the_vocabulary(folder: Tiny) -> None:
    text = json.dumps(folder.config | {"eos_token_id": [2, 5000]})
    (folder.path / "config.json").write_text(text)
    _refused(folder.path, "special token id 5000 is outside the model's vocabulary of 301")


# ---- GGUF -------------------------------------------------------------------------------------


@pytest.fixture
def gguf(tmp_path: Path) -> Tiny:
    return write_gguf(tmp_path / "model.gguf")


@pytest.mark.parametrize("data", [b"", b"GGUF", b"PK\3\4" + bytes(100)])
def test_what_is_no_gguf(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    _refused(path, "not a GGUF file")


@pytest.mark.parametrize("share", [0.001, 0.01, 0.03, 0.5, 0.999])
def test_a_truncated_gguf(share: float, gguf: Tiny) -> None:
    data = gguf.path.read_bytes()
    gguf.path.write_bytes(data[: int(len(data) * share)])
    _refused(gguf.path, "truncated|damaged")


@pytest.mark.parametrize(
    ("at", "layout", "value", "message"),
    [
        (4, "<I", 1, "GGUF version 1 is not supported"),
        (4, ">I", 3, "GGUF version 50331648 is not supported"),
        (8, "<Q", 1 << 60, "damaged"),
        (16, "<Q", 1 << 60, "damaged"),
        (24, "<Q", 1 << 63, "truncated or damaged"),
    ],
)
def test_a_gguf_header_that_lies(
    at: int, layout: str, value: int, message: str, gguf: Tiny
) -> None:
    data = bytearray(gguf.path.read_bytes())
    struct.pack_into(layout, data, at, value)
    gguf.path.write_bytes(data)
    _refused(gguf.path, message)


@pytest.mark.parametrize(
    ("offset", "layout", "value", "message"),
    [
        (0, "<I", 9, "has 9 axes"),
        (4, "<Q", 100, "do not fill Q8_0 blocks of 32"),
        (4, "<Q", 1 << 50, "truncated"),
        (20, "<I", 250, "unknown GGUF type 250"),
        (20, "<I", 16, r"do not fill IQ2_XXS blocks|cannot be dequantised"),
        (24, "<Q", 1 << 40, "truncated"),
    ],
)
def test_a_gguf_tensor_that_lies(
    offset: int, layout: str, value: int, message: str, gguf: Tiny
) -> None:
    data = bytearray(gguf.path.read_bytes())
    name = b"blk.1.ffn_down.weight"
    struct.pack_into(layout, data, data.index(name) + len(name) + offset, value)
    gguf.path.write_bytes(data)
    _refused(gguf.path, message)


def test_a_gguf_array_longer_than_any(gguf: Tiny) -> None:
    """Its values are in the file, but as Python objects they would take tens of times as much."""
    header = b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 0, 5_000_000)
    gguf.path.write_bytes(header + bytes(5_000_000))
    _refused(gguf.path, "damaged GGUF array .type 0, 5000000 items")


@pytest.mark.parametrize("length", [22, 200, 1 << 16])
def test_a_gguf_name_of_another_length(length: int, gguf: Tiny) -> None:
    data = bytearray(gguf.path.read_bytes())
    struct.pack_into("<Q", data, data.index(b"blk.1.ffn_down.weight") - 8, length)
    gguf.path.write_bytes(data)
    _refused(gguf.path, "a damaged name in the header")


@pytest.mark.filterwarnings("error")
def test_a_gguf_scale_that_is_not_finite(gguf: Tiny) -> None:
    data = bytearray(gguf.path.read_bytes())
    data[-34:-32] = b"\xff\x7f"  # the last Q8_0 block: its fp16 scale, then 32 codes
    gguf.path.write_bytes(data)
    _refused(gguf.path, "holds values that are not finite")


def test_a_gguf_type_that_cannot_be_dequantised(gguf: Tiny) -> None:
    data = bytearray(gguf.path.read_bytes())
    name = b"blk.1.ffn_down.weight"
    struct.pack_into("<I", data, data.index(name) + len(name) + 20, 24)  # int8 without a scale
    gguf.path.write_bytes(data)
    _refused(gguf.path, "GGUF type I8 cannot be dequantised")


def test_a_gguf_without_a_tensor(gguf: Tiny) -> None:
    data = gguf.path.read_bytes()
    gguf.path.write_bytes(data.replace(b"blk.1.ffn_down.weight", b"blk.1.ffn_dawn.weight"))
    _refused(gguf.path, f"tensor {DOWN} is missing")


def test_a_gguf_of_another_architecture(gguf: Tiny) -> None:
    data = gguf.path.read_bytes()
    gguf.path.write_bytes(data.replace(b"llama", b"mamba"))
    _refused(gguf.path, "unknown architecture 'mamba'; known: llama")


def test_a_gguf_with_weights_that_are_not_finite(gguf: Tiny) -> None:
    data = gguf.path.read_bytes()
    name = "model.layers.1.input_layernorm.weight"
    values = gguf.tensors[name].copy()
    stored = encode_tensor(values, "F32")
    assert data.count(stored) == 1
    values[3] = np.nan
    gguf.path.write_bytes(data.replace(stored, encode_tensor(values, "F32")))
    _refused(gguf.path, f"{name} holds values that are not finite")
