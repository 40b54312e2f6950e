"""The verbs inspect, verify and doctor: what they print, their JSON and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bitmtp_edge import saved_costs
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.costs import Measurement
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import Engine
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.inspection import summarise

from ..damage import link_copy, replace_file
from ..decode.trace_engine import cost_table
from .conftest import Verb


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
    assert table["replay states"] == "14 in each of 2 segments:"
    states = done.out.split("14 in each of 2 segments:\n")[1].splitlines()
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


def test_inspect_counts_states_by_segment(
    verb: Verb, tiny_ternary_bundle: Bundle, bundle: Path
) -> None:
    for folder in (tiny_ternary_bundle.path, bundle):
        segments = len(Bundle.open(folder).replay.segments)
        told, listed = verb("inspect", folder).out.split("\nreplay states ")[1].split(":\n")
        count = len(listed.splitlines()) - 1  # the heading
        assert told.split() == [
            str(count),
            *(f"in each of {segments} segments".split() if segments > 1 else ()),
        ]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The AR step of every table that is measured, of made-up times, each another."""
    times: list[float] = []

    def measure(engine: Engine, states: ReplayStates) -> Measurement:
        times.append(1.0 + len(times))
        return Measurement(cost_table(states, lambda width: times[-1] * width, 0.0), 1.0)

    monkeypatch.setattr(saved_costs, "measure_costs", measure)
    return times


def test_inspect_tells_what_steps_take_here(
    verb: Verb, tiny_ternary_bundle: Bundle, tmp_path: Path, measured: list[float]
) -> None:
    folder = link_copy(tiny_ternary_bundle.path, tmp_path / "copy")
    asked = ("inspect", folder, "--costs", "--threads", 1)
    done = verb(*asked)
    assert done.code == 0 and done.err.startswith("bitmtp-edge: measuring what steps cost here")
    heading, *lines = done.out.split("segments:\n")[1].splitlines()
    assert heading.split()[-8:] == ["ms", "behind", "64", "ms", "behind", "512", "AR", "steps"]
    states, explained = lines[:-3], " ".join(lines[-3:])
    assert explained.startswith("(ms: of one step, window included, behind 64 and 512 rows")
    cells = {tuple(line.split()[:3]): line.split()[-3:] for line in states}
    assert cells["verify", "1", "1"] == ["1.000", "1.050", "1.00"]
    assert cells["verify", "5", "5"] == ["5.000", "5.250", "5.00"]
    saved = verb(*asked, "--json")
    assert saved.err == "" and len(saved.json["costs"]["steps"]) == len(states)
    anew = verb(*asked, "--measure", "--json")
    assert anew.err.startswith("bitmtp-edge: measuring")
    assert min(step["short_ms"] for step in anew.json["costs"]["steps"]) == measured[1] == 2


def test_inspect_takes_an_engine_only_for_costs(verb: Verb, tiny_bundle: Bundle) -> None:
    assert "add --costs" in verb("inspect", tiny_bundle.path, "--threads", 1).refused()
    assert "add --costs" in verb("inspect", tiny_bundle.path, "--measure").refused()


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
    *skipped, agrees, why, _ = done.out.splitlines()
    assert skipped == [f"{name}: not compared: no CUDA device" for name in ("tensorrt", "cuda")]
    assert agrees.startswith("cpu agrees with onnxruntime: 2 windows, every one of 38 operator ")
    assert why.startswith("(Next tokens may differ although every operator agrees: ")
    assert done.err.splitlines()[0] == "cpu: 2 windows"


def test_verify_json(verb: Verb, tiny_bundle: Bundle) -> None:
    done = verb("verify", tiny_bundle.path, "--windows", 2, "--seed", 3, "--json")
    assert done.code == 0
    assert done.json.keys() == {"ok", "reference", "engines", "skipped"}
    assert done.json["ok"] is True
    assert done.json["skipped"] == dict.fromkeys(("tensorrt", "cuda"), "no CUDA device")
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
    assert "\ncpu DIFFERS from onnxruntime: window 0 (verify, M = " in done.out
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
