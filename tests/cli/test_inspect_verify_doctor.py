"""The verbs inspect, verify and doctor: what they print, their JSON and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.inspection import summarise

from ..damage import link_copy, replace_file
from .conftest import Done

Verb = Callable[..., Done]


def test_inspect(verb: Verb, tiny_bundle: Bundle) -> None:
    done = verb("inspect", tiny_bundle.path)
    assert done.code == 0 and done.err == ""
    table = dict(
        (line[:14].strip(), line[14:].strip()) for line in done.out.splitlines() if line[:1] != " "
    )
    assert table["model"] == "llama (llama)"
    assert table["shape"] == "2 layers, hidden 128, 4 heads, 2 KV heads of 64"
    assert table["context"] == "1,024 tokens"
    assert table["KV a token"] == "fp16 1,024 B, KV8 528 B, KV4 272 B"
    assert table["verify widths"] == "1 2 3 5 9 17 128"
    assert table["replay states"] == "28, the same in every segment:"
    states = done.out.split("the same in every segment:\n")[1].splitlines()
    assert len(states) == 1 + 28 // 2
    assert states[0].split() == ["role", "width", "outputs", "M", "mult-adds", "KV", "written"]
    assert [line.split()[:3] for line in states[1:4]] == [
        ["draft", "1", "1"],
        ["verify", "1", "1"],
        ["verify", "2", "1"],
    ]
    assert table["decoding"] == "nested, gamma 2"
    for plane in ("base", "refinement", "scales", "other"):
        assert f"  {plane} " in done.out


def test_inspect_json(verb: Verb, tiny_bundle: Bundle) -> None:
    done = verb("inspect", tiny_bundle.path, "--json")
    assert done.code == 0 and done.json == json.loads(json.dumps(summarise(tiny_bundle)))
    assert {"plane_bytes", "kv_bytes_per_token", "replay_states", "step_weight_bytes"} <= set(
        done.json
    )


def test_inspect_tells_what_steps_take_here(
    verb: Verb, tiny_ternary_bundle: Bundle, tmp_path: Path
) -> None:
    folder = link_copy(tiny_ternary_bundle.path, tmp_path / "copy")
    done = verb("inspect", folder, "--costs", "--threads", 1)
    assert done.code == 0 and done.err == ""
    heading, *states = done.out.split("the same in every segment:\n")[1].splitlines()
    assert heading.split()[-8:] == ["ms", "behind", "64", "ms", "behind", "512", "AR", "steps"]
    cells = {tuple(line.split()[:3]): line.split()[-3:] for line in states}
    assert cells["verify", "1", "1"][-1] == "1.00"
    assert all(float(ms) > 0 for times in cells.values() for ms in times)
    saved = verb("inspect", folder, "--costs", "--threads", 1, "--json").json["costs"]
    assert f"{saved['steps'][0]['short_ms']:.3f}" == cells["draft", "1", "1"][0]
    assert len(saved["steps"]) == len(states)


def test_inspect_takes_an_engine_only_for_costs(verb: Verb, tiny_bundle: Bundle) -> None:
    assert "add --costs" in verb("inspect", tiny_bundle.path, "--threads", 1).refused()


def test_inspect_reads_the_files_through_unless_told_not_to(
    verb: Verb, tiny_bundle: Bundle, tmp_path: Path
) -> None:
    folder = link_copy(tiny_bundle.path, tmp_path / "copy")
    data = bytearray((folder / "weights.bin").read_bytes())
    data[-1] ^= 1
    replace_file(folder, "weights.bin", bytes(data))
    assert "SHA-256 differs" in verb("inspect", folder).refused()
    assert verb("inspect", folder, "--no-hashes").code == 0


@pytest.mark.parametrize("name", ["inspect", "verify"])
def test_no_bundle(verb: Verb, tmp_path: Path, name: str) -> None:
    assert "does not exist" in verb(name, tmp_path / "none").refused()
    assert "is not a bundle" in verb(name, tmp_path).refused()


def test_verify(verb: Verb, tiny_bundle: Bundle) -> None:
    done = verb("verify", tiny_bundle.path, "--windows", 2)
    assert done.code == 0
    assert done.out.startswith("cpu agrees with onnxruntime: 2 windows, every one of 38 operator ")
    _, why, _ = done.out.splitlines()
    assert why.startswith("(Next tokens may differ although every operator agrees: ")
    assert done.err.splitlines()[0] == "cpu: 2 windows"


def test_verify_json(verb: Verb, tiny_bundle: Bundle) -> None:
    done = verb("verify", tiny_bundle.path, "--windows", 2, "--seed", 3, "--json")
    assert done.code == 0
    assert done.json.keys() == {"ok", "reference", "engines", "skipped"}
    assert done.json["ok"] is True and done.json["skipped"] == {}
    (engine,) = done.json["engines"]
    assert engine["engine"] == "cpu" and engine["fault"] is None and engine["windows"] == 2


def test_verify_ends_with_1_where_engines_disagree(
    verb: Verb, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = CpuEngine.tensors

    def wrong(engine: CpuEngine) -> object:
        found = tensors(engine)
        assert found is not None
        found["layers.0.down.out"][0, 0] += 1
        return found

    monkeypatch.setattr(CpuEngine, "tensors", wrong)
    done = verb("verify", tiny_bundle.path)
    assert done.code == 1
    assert done.out.startswith("cpu DIFFERS from onnxruntime: window 0 (verify, M = ")
    assert "DualPlaneLinear 'layers.0.down': out differs by" in done.out
    assert "may differ" not in done.out
    done = verb("verify", tiny_bundle.path, "--json")
    assert done.code == 1 and done.json["ok"] is False
    assert "layers.0.down" in done.json["engines"][0]["fault"]


@pytest.mark.parametrize("option", [("--windows", 0), ("--seed", -1), ("--windows", "x")])
def test_options_out_of_range(verb: Verb, tiny_bundle: Bundle, option: tuple[str, object]) -> None:
    assert option[0] in verb("verify", tiny_bundle.path, *option).refused()


def test_doctor(verb: Verb) -> None:
    done = verb("doctor")
    assert done.code == 0 and done.err == ""
    lines = done.out.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "missing", "untested"}
    assert any(line.startswith("ok        engine cpu ") for line in lines)


def test_doctor_json(verb: Verb) -> None:
    done = verb("doctor", "--json")
    findings = json.loads(done.out)
    assert done.code == 0 and len(findings) > 5
    assert all(finding.keys() == {"subject", "status", "detail"} for finding in findings)
