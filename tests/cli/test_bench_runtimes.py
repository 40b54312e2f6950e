"""`bitmtp-edge bench --runtime`, with host memory in place of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bitmtp_edge.bandwidth import Bandwidth
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.base import ReplayState, StepOutput, Window
from bitmtp_edge.engines.cuda import CudaEngine
from bitmtp_edge.engines.cuda_runtimes import PrivateKVEngine
from bitmtp_edge.engines.registry import ENGINES, EngineKind, EngineOptions
from bitmtp_edge.engines.runtimes import RUNTIMES

from ..engines.host_device import HostDevice, HostLibrary
from .conftest import BLOCKS, SHORT, Verb

CUDA = ("--engine", "cuda")
MANY = [part for name in ("m3", "generic", "full") for part in ("--runtime", name)]


@pytest.fixture(autouse=True)
def _host_memory_in_place_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_host(bundle: Bundle, options: EngineOptions) -> CudaEngine:
        device = HostDevice()
        return CudaEngine(bundle, device=device, library=HostLibrary(device))

    monkeypatch.setitem(ENGINES, "cuda", EngineKind("", lambda: None, on_host))


@pytest.fixture
def ternary(tiny_ternary_bundle: Bundle) -> Path:
    return tiny_ternary_bundle.path


def test_runtimes_stand_side_by_side(verb: Verb, ternary: Path, prompts: Path) -> None:
    """In their own order, the full one first, each with all policies."""
    done = verb("bench", ternary, "--prompts", prompts, *CUDA, *MANY, *BLOCKS, *SHORT, "--json")
    assert done.code == 0
    report = done.json
    assert report["ok"]
    names = ["full", "generic", "m3"]
    policies = report["policies"]
    assert [policy["runtime"] for policy in policies] == [name for name in names for _ in range(3)]
    full, generic, hoisted = policies[:3], policies[3:6], policies[6:]
    assert full[0]["speedup_over_ar"] == 1.0
    assert all(p["same_tokens_as_ar"] for p in (*full[:2], *generic[:2], *hoisted[:2]))
    assert all(p["same_tokens_as_full"] is None for p in full)
    assert all(p["same_tokens_as_full"] for p in (*generic, *hoisted))
    assert all(p["speedup_over_generic"] == 1.0 for p in generic)
    assert all(p["speedup_over_generic"] > 0 for p in policies)
    seconds = {
        (row["runtime"], row["policy"], row["prompt"]): row["decode_s"] / row["generated_tokens"]
        for row in report["replies"]
    }
    ratios = [
        seconds["generic", "hybrid", prompt] / seconds["full", "hybrid", prompt]
        for prompt in (0, 1)
    ]
    assert full[2]["speedup_over_generic"] == pytest.approx(sum(ratios) / 2)
    widths: dict[str, set[tuple[int, int]]] = {name: set() for name in names}
    for step in report["steps"]:
        widths[step["runtime"]].add((step["width"], step["outputs"]))
    assert len(widths["full"]) > len(widths["generic"]) == len(widths["m3"])
    memory = {each["runtime"]: each["kv_bytes"] for each in report["runtimes"]}
    assert list(memory) == names
    assert memory["generic"] == memory["m3"] >= 2 * memory["full"]


def test_the_table_tells_runtimes(verb: Verb, ternary: Path, prompts: Path) -> None:
    done = verb("bench", ternary, "--prompts", prompts, *CUDA, *MANY, *BLOCKS, *SHORT)
    assert done.code == 0
    lines = done.out.splitlines()
    heading = next(line for line in lines if line.startswith("policy "))
    assert heading.endswith("over generic")
    row = next(line for line in lines if line.startswith("full: hybrid, block 4, min-prefix 2  "))
    over = row.split()[-1]
    assert f"full: hybrid, block 4, min-prefix 2, over generic: {over}" in lines
    assert any(line.startswith("KV buffers: full ") and ", m3 " in line for line in lines)
    assert "every runtime's tokens are the full one's, token for token" in lines
    assert "bench: 100%  18/18 replies" in done.err


@pytest.mark.parametrize("name", RUNTIMES)
def test_each_runtime_alone(verb: Verb, ternary: Path, prompts: Path, name: str) -> None:
    policy = ("--runtime", name, "--policy", "hybrid")
    done = verb("bench", ternary, "--prompts", prompts, *CUDA, *policy, *SHORT, "--json")
    assert done.code == 0
    (report,) = done.json["policies"]
    assert report["runtime"] == name
    assert report["speedup_over_generic"] == (1.0 if name == "generic" else None)
    assert report["same_tokens_as_full"] is None


def test_without_runtimes_none_is_named(verb: Verb, ternary: Path, prompts: Path) -> None:
    done = verb("bench", ternary, "--prompts", prompts, *CUDA, *BLOCKS, *SHORT, "--json")
    report = done.json
    assert report["runtimes"] == []
    rows = [*report["policies"], *report["steps"], *report["replies"]]
    assert {row["runtime"] for row in rows} == {None}


def test_other_tokens_than_the_full_runtimes_are_told(
    verb: Verb, ternary: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote = CudaEngine.promote

    def shifted(self: PrivateKVEngine, rows: Sequence[int], at: int) -> None:
        promote(self, rows, max(0, at - 1))

    monkeypatch.setattr(PrivateKVEngine, "promote", shifted)
    names = ("--runtime", "full", "--runtime", "m1", "--policy", "hybrid")
    done = verb("bench", ternary, "--prompts", prompts, *CUDA, *names, *SHORT)
    assert done.code == 1
    assert (
        "m1: hybrid, block 4, min-prefix 2: its tokens DIFFER from the full runtime's" in done.out
    )


def test_engines_are_closed(
    verb: Verb, ternary: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a step fails."""
    opened, closed = [0], [0]
    create, close = CudaEngine.__init__, CudaEngine.close

    def counted(self: CudaEngine, *arguments: object, **options: object) -> None:
        create(self, *arguments, **options)  # type: ignore[arg-type]
        opened[0] += 1

    def counted_close(self: CudaEngine) -> None:
        closed[0] += 1
        close(self)

    def failing(self: CudaEngine, state: ReplayState, window: Window) -> StepOutput:
        raise KeyboardInterrupt

    monkeypatch.setattr(CudaEngine, "__init__", counted)
    monkeypatch.setattr(CudaEngine, "close", counted_close)
    monkeypatch.setattr(CudaEngine, "start", failing)
    done = verb("bench", ternary, "--prompts", prompts, *CUDA, *MANY, *SHORT)
    assert done.code == 130
    assert opened == closed == [4]


def test_at_the_sizes_of_a_model(
    verb: Verb, tiny_ternary_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitmtp_edge.cli.bench_synthetic.terminate_as_interrupt", lambda: None)
    monkeypatch.setattr(
        "bitmtp_edge.export.synthetic.write_synthetic", lambda shape, path: tiny_ternary_bundle
    )
    monkeypatch.setattr("bitmtp_edge.bandwidth._gpu", lambda: Bandwidth(1e9, ""))
    limits = ("--policy", "ar", "--policy", "hybrid", "--block", 4, *SHORT, "--json")
    done = verb("bench", "--synthetic", "bitnet-2b", *CUDA, *MANY, *limits)
    assert done.code == 0
    policies = done.json["bench"]["policies"]
    traces = [policy["settings"].get("trace") for policy in policies if policy["runtime"] == "m3"]
    assert traces == [None, "4.6", "6.7", "7.1"]
    assert len(policies) == 12
    assert all(policy["same_tokens_as_full"] for policy in policies[4:])
    assert [each["runtime"] for each in done.json["bench"]["runtimes"]] == ["full", "generic", "m3"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--engine", "cpu", "--runtime", "full"), "add --engine cuda, or leave --runtime out"),
        ((*CUDA, "--runtime", "m4"), "'m4' is not one of"),
        ((*CUDA, "--runtime", "m1", "--block", "auto"), "--block auto chooses by what steps take"),
    ],
)
def test_bad_use_is_one_line(
    verb: Verb, ternary: Path, prompts: Path, arguments: Sequence[str], told: str
) -> None:
    assert told in verb("bench", ternary, "--prompts", prompts, *arguments).refused()
