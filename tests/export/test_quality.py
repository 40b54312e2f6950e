"""The quality table, and its verb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.cli import main
from bitmtp_edge.errors import UserError
from bitmtp_edge.export.checkpoints import open_checkpoint
from bitmtp_edge.export.quality import Quality, measure_quality
from bitmtp_edge.export.reference_model import reference_logits
from bitmtp_edge.session import Session
from bitmtp_edge.text.tokenizer import Tokenizer

from .tiny_models import Tiny, write_folder

MODELS = ["fp32", "fp32, int8 activations", "W8A8 (verify)", "W4A8 (draft)"]
TEXT = "".join(chr(33 + i) for i in np.random.default_rng(8).integers(0, 90, 900))


def _measure(bundle: Bundle, *arguments: Any) -> list[Quality]:
    with Session.open(bundle.path) as session:
        return measure_quality(session, *arguments)


def test_the_table(tiny_bundle: Bundle, tiny_llama: Tiny) -> None:
    lines: list[str] = []
    rows = _measure(tiny_bundle, tiny_llama.path, TEXT, 600, lines.append)
    assert [row.model for row in rows] == MODELS and len(lines) == 4
    fp32, int8, w8, w4 = rows
    assert fp32.agreement == 1 and w8.agreement_verify == 1
    assert fp32.agreement_verify == w8.agreement
    for row in (int8, w8):
        assert abs(row.perplexity / fp32.perplexity - 1) < 0.1
        assert row.agreement > 0.85
    assert w4.agreement < w8.agreement and w4.agreement_verify < 1


@pytest.mark.parametrize("positions", [1, 499, 501])
def test_exactly_the_positions_asked_for(
    tiny_bundle: Bundle, tiny_llama: Tiny, positions: int
) -> None:
    """Perplexity by hand: pieces of 500 positions, each with one more token to predict."""
    (fp32, *_) = _measure(tiny_bundle, tiny_llama.path, TEXT, positions)
    tokens = Tokenizer.load(tiny_bundle.file("tokenizer.json")).encode(TEXT, parse_special=False)
    losses: list[float] = []
    with open_checkpoint(tiny_llama.path) as checkpoint:
        while len(losses) < positions:
            piece = min(500, positions - len(losses))
            window, tokens = tokens[: piece + 1], tokens[piece + 1 :]
            logits = np.concatenate(list(reference_logits(checkpoint, [window]))).astype(float)
            logits -= logits.max(axis=1, keepdims=True)
            shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            losses += [-np.log(shares[i, window[i + 1]]) for i in range(piece)]
    np.testing.assert_allclose(fp32.perplexity, np.exp(np.mean(losses)), rtol=1e-3)


def test_a_text_that_is_too_short(tiny_bundle: Bundle, tiny_llama: Tiny) -> None:
    with pytest.raises(UserError, match=r"the text has \d+ tokens, expected 501 for 500"):
        _measure(tiny_bundle, tiny_llama.path, "short", 500)


def test_a_source_of_another_vocabulary(tiny_bundle: Bundle, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "other", vocab_size=310)
    with pytest.raises(UserError, match=r"has another vocabulary than .*: not its source"):
        _measure(tiny_bundle, other.path, TEXT, 10)


# ---- the verb ------------------------------------------------------------------------------------


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def _run(*arguments: object) -> int:
    return main(["quality", *map(str, arguments)])


def test_the_verb(
    tiny_bundle: Bundle, tiny_llama: Tiny, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--source", tiny_llama.path, "--text", text_file, "--positions", 60)
    assert _run(tiny_bundle.path, *options) == 0
    out, err = capsys.readouterr()
    about, fp32, _, head, *lines, _, smoothed, _ = out.splitlines()
    assert about.startswith(f"60 positions of {text_file}, in windows of up to 500 ")
    assert fp32 == f"fp32 is {tiny_llama.path}, dequantised"
    assert smoothed.startswith("W8A8 can be better than int8 activations alone: export smooths")
    assert " ".join(head.split()) == "model perplexity to fp32 argmax as fp32 as verify"
    assert [line[:24].strip() for line in lines] == MODELS
    assert lines[0].split()[-3:-1] == ["1.0000", "100.0%"]
    assert len({len(line) for line in (head, *lines)}) == 1
    assert err.splitlines()[0] == "fp32 model"

    assert _run(tiny_bundle.path, *options, "--engine", "cpu", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["positions"] == 60
    assert (told["source"], told["text"]) == (str(tiny_llama.path), str(text_file))
    assert [model["model"] for model in told["models"]] == MODELS
    keys = {"model", "perplexity", "ratio", "agreement", "agreement_verify"}
    assert all(model.keys() == keys for model in told["models"])
    assert told["models"][0]["ratio"] == 1


def test_refusals_of_the_verb(
    tiny_bundle: Bundle, tiny_llama: Tiny, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ("--source", tiny_llama.path)
    binary = text_file.with_name("binary")
    binary.write_bytes(b"\xff\xfe")
    for arguments, words in (
        ((tiny_bundle.path, *source), "Missing option '--text'"),
        ((tiny_bundle.path, *source, "--text", text_file), "expected 2004 for 2000 positions"),
        ((tiny_bundle.path, *source, "--text", binary), "is not UTF-8 text"),
        ((tiny_bundle.path, *source, "--text", "none"), "none: No such file"),
        ((tiny_bundle.path, "--source", "none", "--text", text_file, "--positions", 5), "none: no"),
        (("none", *source, "--text", text_file), "none does not exist"),
        (
            (tiny_bundle.path, *source, "--text", text_file, "--positions", 5, "--engine", "x"),
            "no engine 'x'",
        ),
    ):
        assert _run(*arguments) == 2
        out, err = capsys.readouterr()
        last = err.splitlines()[-1]
        assert out == "" and words in last and last.startswith("bitmtp-edge: error: ")
