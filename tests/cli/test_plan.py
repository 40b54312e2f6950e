"""The verb plan: what it prints, its JSON, its exit codes and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bitmtp_edge import host
from bitmtp_edge.bundle import Bundle

from .conftest import Verb

BOARD = ("--profile", "orin-nx-16gb")


def test_plan(verb: Verb, block_bundle: Path) -> None:
    done = verb("plan", block_bundle, *BOARD, "--power-mode", "40w")
    assert (done.code, done.err) == (0, "")
    first, *lines = done.out.splitlines()
    assert first.endswith("on NVIDIA Jetson Orin NX 16GB, 1,024 tokens of context: fits")
    sizes = {line.split()[0]: line.split()[1] for line in lines[:8]}
    assert list(sizes) == [
        *("weights", "kv", "kv_growth", "arena", "workspace", "step", "engines", "process")
    ]
    assert sizes["process"] == "640.0"
    assert "largest context that fits: 1,024 tokens" in done.out
    assert "nothing was measured on a Jetson" in done.out
    short, full = done.out.split("behind ")[1:]
    assert short.startswith("256 tokens:\n") and full.startswith("1,023 tokens:\n")
    policies, heading, mode = short.splitlines()[1:4]
    assert policies.split() == ["GPU", "GPU", "memory", "ar", "hybrid", "hybrid", "hybrid"]
    assert heading.startswith("  power mode  SMs    MHz    GB/s")
    # Of blocks of 4, which cut the traces of blocks of 8.
    assert heading.split()[5:9] == ["1", "tok/it", "3.8", "tok/it"]
    # Flashed as super alone, and what makes it fast or slow.
    assert mode.split()[:4] == ["40W*", "8", "1,173", "102.4"]


@pytest.mark.parametrize("asked", [("plan", *BOARD), ("inspect",)])
def test_a_name_does_not_steer_the_terminal(
    verb: Verb, block_bundle: Path, asked: tuple[str, ...]
) -> None:
    path = block_bundle / "bundle.json"
    value = json.loads(path.read_text())
    value["model"]["name"] = "\x1b]0;owned\x07\nx"
    path.write_text(json.dumps(value))
    done = verb(asked[0], block_bundle, *asked[1:])
    assert done.code == 0 and "\\x1b]0;owned\\x07 x" in done.out
    assert "\x1b" not in done.out and "\x07" not in done.out


def test_plan_json(verb: Verb, tiny_bundle: Bundle) -> None:
    done = verb("plan", tiny_bundle.path, *BOARD, "--context", 300, "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["ok"] is True and done.json["segment"] == 512
    assert {rate["policy"] for rate in done.json["rates"]} == {"ar", "nested"}
    assert {rate["mode"] for rate in done.json["rates"]} >= {"MAXN_SUPER", "10W"}


def test_a_shape_that_does_not_fit(verb: Verb) -> None:
    done = verb("plan", "--shape", "llama-2-7b", "--profile", "orin-nano-4gb")
    assert (done.code, done.err) == (1, "")
    assert "DOES NOT FIT" in done.out
    assert "fits: none: it does not fit in any context, so there are no rates" in done.out
    assert "behind" not in done.out and "tok/it" not in done.out
    assert "without a desktop, not verified" in done.out


def test_a_context_that_does_not_fit(verb: Verb) -> None:
    done = verb("plan", "--shape", "bonsai-1.7b", "--profile", "orin-nano-8gb")
    assert done.code == 1
    assert "fits: 16,384 tokens: run, or export, with --context 16384\n" in done.out
    assert "Tokens a second, in the largest context that fits (16,384), predicted" in done.out
    assert "behind 256 tokens:" in done.out and "behind 16,383 tokens:" in done.out
    assert done.out.count("behind") == 2


def test_figures_that_are_not_verified_are_marked(verb: Verb) -> None:
    done = verb("plan", "--shape", "bonsai-1.7b", "--profile", "agx-orin-32gb", "--context", 512)
    modes = [line.split()[0] for line in done.out.splitlines() if line.startswith("  M")]
    assert modes[0] == "MAXN_SUPER*~" and "MAXN" in modes


def test_a_trace_of_ones_own(verb: Verb, block_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("2 0 0\n")
    asked = ("plan", block_bundle, *BOARD, "--accept-trace", tmp_path / "trace", "--json")
    drafting = [rate for rate in verb(*asked).json["rates"] if rate["policy"] == "hybrid"]
    assert drafting and all(rate["tokens_per_iteration"] == 2 for rate in drafting)
    assert drafting[0]["trace"] == str(tmp_path / "trace")


def test_the_board_is_this_one_where_it_is_one(
    verb: Verb, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ..boards import JETPACK7, write_board

    here = host.read_host(write_board(tmp_path, JETPACK7))
    monkeypatch.setattr(host, "read_host", lambda: here)
    done = verb("plan", tiny_bundle.path, "--json")
    assert done.json["profile"]["name"] == "orin-nano-8gb"


def test_refusals(verb: Verb, tiny_bundle: Bundle, tmp_path: Path) -> None:
    folder = tiny_bundle.path
    (tmp_path / "trace").write_text("9 9 1\n")
    for asked, expected in (
        ((folder,), "add --profile with one of agx-orin-32gb"),
        (BOARD, "name a bundle or a --shape"),
        ((folder, "--shape", "bonsai-1.7b", *BOARD), "name a bundle or a --shape"),
        (("--shape", "gpt-5", *BOARD), "no shape 'gpt-5'"),
        ((folder, "--profile", "nano"), "no board profile 'nano'"),
        ((folder, *BOARD, "--power-mode", "7W"), "has no power mode '7W'"),
        ((folder, *BOARD, "--context", 99999), "serves 2 to 1024 tokens"),
        ((folder, *BOARD, "--accept-trace", tmp_path / "trace"), "makes 2 drafts an iteration"),
        ((tmp_path / "none", *BOARD), "does not exist"),
    ):
        assert expected in verb("plan", *asked).refused()


def test_profiles_are_listed(verb: Verb) -> None:
    lines = verb("plan", "--list-profiles").out.splitlines()
    assert [line.split()[0] for line in lines] == verb("plan", "--list-profiles", "--json").json
    assert any("MAXN_SUPER, 40W" in line for line in lines)
