"""`bitmtp-edge bench --synthetic`: random weights at the sizes of a model."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from bitmtp_edge.export import shapes
from bitmtp_edge.export.shapes import SHAPES
from bitmtp_edge.synthetic import SyntheticReport

from .conftest import Verb

SMALL = ("--repeat", 1, "--max-new-tokens", 40, "--engine", "cpu", "--threads", 1)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where bundles lie; the shapes are made tiny. Whatever happens, nothing stays there."""
    for name, shape in SHAPES.items():
        config = replace(
            shape.config,
            vocab_size=301,
            hidden_size=128,
            num_layers=1,
            num_heads=4,
            num_kv_heads=2,
            head_dim=64,
            intermediate_size=192,
            context=300,
            longest_context=300,
        )
        monkeypatch.setitem(shapes.SHAPES, name, replace(shape, config=config))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.glob("bitmtp-edge-*")) == []


@pytest.fixture(autouse=True)
def _signals_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitmtp_edge.cli.bench_synthetic.terminate_as_interrupt", lambda: None)


def test_a_runtime_is_refused_before_anything_is_written(
    verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(shape: str, path: Path) -> None:
        raise AssertionError(f"{path} is written")

    monkeypatch.setattr("bitmtp_edge.export.synthetic.write_synthetic", written)
    asked = ("--synthetic", "bonsai-1.7b", "--engine", "cpu", "--runtime", "full")
    assert "add --engine cuda, or leave --runtime out" in verb("bench", *asked).refused()


def test_json_of_blocks(verb: Verb) -> None:
    report = verb("bench", "--synthetic", "bitnet-2b", *SMALL, "--json").json
    assert list(report) == ["ok", "synthetic", *(field.name for field in fields(SyntheticReport))]
    assert (report["ok"], report["synthetic"], report["shape"]) == (True, True, "bitnet-2b")
    assert report["bench"]["synthetic"] is True
    policies = [
        (policy["policy"], policy["settings"].get("block"), policy["settings"].get("trace"))
        for policy in report["bench"]["policies"]
    ]
    assert policies == [
        ("ar", None, None),
        *(
            (name, block, trace)
            for name in ("confidence", "hybrid")
            for block in (4, 8)
            for trace in ("4.6", "6.7", "7.1")
        ),
    ]
    for policy in report["bench"]["policies"]:
        assert policy["generated_tokens"] == 4 * 40
        assert policy["speedup_over_ar"] > 0
    rows = report["bench"]["replies"]
    assert [row["trace"] for row in rows[:8]] == [None] * 4 + ["4.6"] * 4


def test_every_state_of_a_segment_is_measured(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitmtp_edge.synthetic.STEP_RUNS", 4)
    report = verb("bench", "--synthetic", "llama-2-7b", *SMALL, "--json").json
    kinds = {(s["role"], s["width"], s["outputs"], s["segment"]) for s in report["states"]}
    widths = (1, 2, 3, 5, 9, 17, 128)
    assert kinds == {
        ("draft", 1, 1, 384),
        *(("verify", width, outputs, 384) for width in widths for outputs in (1, width)),
    }
    assert report["startup"]["states"] == len(kinds) - 1
    assert min(report["startup"][name] for name in ("bundle_s", "load_s", "first_step_s")) > 0
    assert (
        report["bandwidth"]["bytes_per_s"] > 0
        and "NumPy on one thread" in (report["bandwidth"]["how"])
    )
    assert report["memory"]["states"] is None
    assert set(report["memory"]["held"]) == {"weights", "kv", "arena", "workspace"}
    for state in report["states"]:
        assert (state["runs"], state["history"]) == (4, 256)
        first, third = state["quartiles_us"]
        assert 0 < first <= state["median_us"] <= third
        share = 1e6 * state["bytes_read"] / state["median_us"] / report["bandwidth"]["bytes_per_s"]
        assert state["share_of_bandwidth"] == pytest.approx(share)
    draft, verify = (
        next(s["bytes_read"] for s in report["states"] if s["role"] == role)
        for role in ("draft", "verify")
    )
    nested = report["bench"]["policies"][1]
    assert draft < verify < 2 * draft
    assert (nested["policy"], nested["gamma"]) == ("nested", 4)
    assert nested["acceptance_rate"] == pytest.approx(0.95, abs=0.05)


@pytest.mark.gpu
def test_on_a_gpu(verb: Verb) -> None:
    asked = ("--repeat", 1, "--max-new-tokens", 40, "--engine", "cuda", "--json")
    report = verb("bench", "--synthetic", "bitnet-2b", *asked).json
    assert report["device"] and report["memory"]["states"] >= 0
    assert report["bandwidth"]["bytes_per_s"] > 1e10
    assert report["bandwidth"]["how"].endswith(" GiB in PyTorch")
    assert min(report["memory"]["held"].values()) > 0
    roles = {(step["role"], step["width"]) for step in report["bench"]["steps"]}
    assert roles > {("draft", 15), ("verify", 9), ("verify", 1)}


def test_what_people_read(verb: Verb) -> None:
    asked = ("--policy", "ar", "--policy", "hybrid", "--block", 8)
    done = verb("bench", "--synthetic", "bonsai-1.7b", *SMALL, *asked)
    assert done.code == 0
    assert done.out.startswith("synthetic: bonsai-1.7b, 0.00 billion random weights (")
    assert "\nstart-up: bundle made in " in done.out
    assert re.search(
        r"\nmemory is read at [\d,]+ GB/s: read by a sum of 256 MiB in NumPy", done.out
    )
    assert re.search(r"\nverify +1 +1 +[\d.,]+ +1\.00 ", done.out)
    assert "\nhybrid, block 8, min-prefix 2, trace 6.7 " in done.out
    assert "synthetic acceptance: what comes of drafts is dictated" in done.out
    assert "confidence" not in done.out.replace("confident", "")


def test_other_outcomes_may_be_dictated(verb: Verb, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("4 0 0\n0 2 1\n")
    hybrid = ("--policy", "ar", "--policy", "hybrid", "--block", 4, "--json")
    given = verb("bench", "--synthetic", "bonsai-4b", *SMALL, *hybrid, "--accept-trace", trace).json
    _, policy = given["bench"]["policies"]
    assert policy["settings"]["trace"] == str(trace)
    assert policy["verified_share"] == pytest.approx(0.5, abs=0.1)
    rejected = verb("bench", "--synthetic", "bonsai-4b", *SMALL, *hybrid, "--force-reject").json
    _, policy = rejected["bench"]["policies"]
    assert policy["same_tokens_as_ar"] is True and policy["tokens_per_iteration"] == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--synthetic", "gpt-5"), "no shape 'gpt-5': choose bitnet-2b or bonsai-1.7b or"),
        (("--synthetic", "bitnet-2b", "BUNDLE"), "--synthetic makes its bundle and its prompts"),
        (("--synthetic", "bitnet-2b", "--prompts", "p"), "--synthetic makes its bundle and its"),
        (("--synthetic", "bitnet-2b", "--block", "auto"), "--block auto chooses by what comes of"),
        (("--synthetic", "bitnet-2b", "--gamma", "4", "--policy", "nested"), "no base plane"),
        (("--synthetic", "bitnet-2b", "--block", "16"), "blocks of 8 tokens: expected 2 to 8"),
        (("--synthetic", "llama-2-7b", "--policy", "hybrid"), "no mask embeddings"),
        (("--prompts", "p"), "no bundle is given: name one, or --synthetic SHAPE"),
    ],
)
def test_bad_input_is_one_line(verb: Verb, arguments: tuple[str, ...], told: str) -> None:
    done = verb("bench", *arguments)
    assert (done.code, done.out) == (2, "")
    *shown, last = done.err.splitlines()
    assert told in last and last.startswith("bitmtp-edge: error: ")
    assert all(line.startswith("random weights: ") for line in shown)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--engine", "magic"), "no engine 'magic'"),
        (("--threads", "257"), "--threads is 257"),
        (("--provider", "X"), "add --engine onnxruntime"),
    ],
)
def test_an_engine_that_does_not_work_is_told_first(
    verb: Verb, arguments: tuple[str, ...], told: str
) -> None:
    assert told in verb("bench", "--synthetic", "llama-2-7b", *arguments).refused()


def test_a_missing_package_is_told_before_weights_are_made(
    verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnx" else find(name)
    )
    told = verb("bench", "--synthetic", "bitnet-2b", *SMALL).refused()
    assert "onnx is not installed: install the extra 'export'" in told
