"""Bundle.open: what it takes, and the one line for a bundle_copy, JSON or file that it does not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bitmtp_edge.bundle import BUNDLE_FILE, Bundle, Manifest
from bitmtp_edge.errors import UserError
from bitmtp_edge.records import read_record

from .damage import drop, edit, put, refusal, replace_file

FUZZ = Path(__file__).with_name("fuzz_bundle.py")
FUZZ_CASES = 400


# ---- what opens ----------------------------------------------------------------------------------


def test_a_copy_opens(bundle_copy: Path, tiny_bundle: Bundle) -> None:
    opened = Bundle.open(bundle_copy)
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


def test_a_link_inside_the_folder_is_taken(bundle_copy: Path) -> None:
    (bundle_copy / "tokenizer.json").rename(bundle_copy / "real.json")
    (bundle_copy / "tokenizer.json").symlink_to("real.json")
    Bundle.open(bundle_copy)


def test_weights_are_as_written(bundle_copy: Path, tiny_bundle: Bundle) -> None:
    """A change that bundle.json agrees with opens, and shows in the weights."""
    data = bytearray((bundle_copy / "weights.bin").read_bytes())
    entry = tiny_bundle.tensors["final_norm"]
    data[entry.offset : entry.offset + 4] = np.float32(5).tobytes()
    replace_file(bundle_copy, "weights.bin", bytes(data), listed=True)
    assert Bundle.open(bundle_copy).weights["final_norm"][0] == 5


# ---- the folder and its JSON ---------------------------------------------------------------------


def test_no_folder(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none")
    told = refusal(tmp_path / "b ü $x")  # with a command that a shell takes as it is meant
    assert told.endswith(f"bitmtp-edge export SRC -o '{tmp_path}/b ü $x'")


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
def test_manifest_text(bundle_copy: Path, data: bytes, words: str) -> None:
    (bundle_copy / BUNDLE_FILE).write_bytes(data)
    line = refusal(bundle_copy)
    assert words in line and BUNDLE_FILE in line


# ---- files ---------------------------------------------------------------------------------------

FILES = ("weights.bin", "draft.onnx", "verify.onnx", "tokenizer.json")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(bundle_copy: Path, name: str) -> None:
    (bundle_copy / name).unlink()
    assert f"{bundle_copy / name} is missing" in refusal(bundle_copy)


@pytest.mark.parametrize("name", FILES)
def test_an_unlisted_file(bundle_copy: Path, name: str) -> None:
    assert f"{name} is not listed" in refusal(edit(bundle_copy, drop("files", name)))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["shorter", "longer", "empty"])
def test_a_file_of_another_size(bundle_copy: Path, name: str, change: str) -> None:
    data = (bundle_copy / name).read_bytes()
    replace_file(
        bundle_copy, name, {"shorter": data[:-1], "longer": data + b"\0", "empty": b""}[change]
    )
    assert "truncated or changed" in refusal(bundle_copy)


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit(bundle_copy: Path, name: str) -> None:
    data = bytearray((bundle_copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    replace_file(bundle_copy, name, bytes(data))
    assert "SHA-256 differs" in refusal(bundle_copy)
    Bundle.open(bundle_copy, check_hashes=False)


def test_a_folder_in_a_files_place(bundle_copy: Path) -> None:
    (bundle_copy / "tokenizer.json").unlink()
    (bundle_copy / "tokenizer.json").mkdir()
    assert "is missing" in refusal(bundle_copy)
    assert "is missing" in refusal(
        edit(bundle_copy, put("files", "", value={"bytes": 1, "sha256": ""}))
    )


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "/etc/hostname", "..\\x", "a\\b", "a\0b", ".."],
    ids=repr,
)
def test_names_that_escape(bundle_copy: Path, name: str) -> None:
    (bundle_copy.parent / "x").write_text("x")
    line = refusal(edit(bundle_copy, put("files", name, value={"bytes": 1, "sha256": ""})))
    assert f"files: {name!r} leaves the bundle's folder" in line


def test_a_link_out_of_the_folder(bundle_copy: Path) -> None:
    outside = bundle_copy.parent / "tokenizer.json"
    (bundle_copy / "tokenizer.json").rename(outside)
    (bundle_copy / "tokenizer.json").symlink_to(outside)
    assert "'tokenizer.json' leaves the bundle's folder" in refusal(bundle_copy)


def test_links_in_a_circle(bundle_copy: Path) -> None:
    (bundle_copy / "tokenizer.json").unlink()
    (bundle_copy / "tokenizer.json").symlink_to("tokenizer.json")
    assert re.search("cannot be looked up|is missing", refusal(bundle_copy))


@pytest.mark.parametrize("name", ["x" * 5000, "\ud800"], ids=["long", "half a surrogate pair"])
def test_names_that_no_system_takes(bundle_copy: Path, name: str) -> None:
    line = refusal(edit(bundle_copy, put("files", name, value={"bytes": 1, "sha256": ""})))
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
