"""footprint: the bytes that engines lay out, from bundle.json alone."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import Engine, ReplayState
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.footprint import (
    ESTIMATED,
    PROCESS_BYTES,
    Footprint,
    attention_workspace,
    footprint,
    head_workspace,
    kv_bytes,
)

from .engines.cuda_steps import on_host

ROOT = Path(__file__).parents[1]
BUNDLES = ("tiny_bundle", "fp16_bundle", "tiny_ternary_bundle")


@pytest.fixture(params=BUNDLES)
def bundle(request: pytest.FixtureRequest) -> Bundle:
    found: Bundle = request.getfixturevalue(request.param)
    return found


def states_of(bundle: Bundle, segments: int = 1) -> list[ReplayState]:
    kept = bundle.replay.segments[:segments]
    return [state for state in ReplayStates.of(bundle).all() if state.segment in kept]


def run_all(engine: Engine, states: list[ReplayState]) -> dict[str, int]:
    for state in states:
        window = causal_window([0] * state.width, 0, (), state.width, state.outputs, state.outputs)
        engine.replay(state, window)
    return engine.memory()


def test_it_is_what_the_gpu_engine_allocates(bundle: Bundle) -> None:
    states = states_of(bundle)
    found = footprint(bundle, states)
    with on_host(bundle) as engine:
        told = run_all(engine, states)
    assert (found.weights, found.kv, found.arena) == (told["weights"], told["kv"], told["arena"])


def test_it_is_what_the_cpu_engine_holds_but_for_alignment(bundle: Bundle) -> None:
    states = states_of(bundle)
    found = footprint(bundle, states)
    with CpuEngine(bundle, threads=1) as engine:
        told = run_all(engine, states)
    planes = 3 * bundle.model.num_layers
    assert 0 <= found.weights - told["weights"] < 256 * len(bundle.tensors)
    assert 0 <= found.kv - told["kv"] < 256 * planes
    # There a step's inputs and outputs lie among its tensors.
    assert found.arena <= told["arena"] <= found.arena + found.step


def test_growing_holds_two_buffers(bundle: Bundle) -> None:
    small, large = (kv_bytes(bundle, segment) for segment in bundle.replay.segments[:2])
    one, two = (footprint(bundle, states_of(bundle, count)) for count in (1, 2))
    assert (one.kv, one.kv_growth) == (small, 0)
    assert (two.kv, two.kv_growth) == (large, small)


def test_narrow_states_take_less(bundle: Bundle) -> None:
    segment = bundle.replay.segments[0]
    narrow = footprint(bundle, [ReplayState(1, 1, segment, "verify")])
    all_of_them = footprint(bundle, states_of(bundle))
    for part in ("arena", "workspace", "step", "engines"):
        assert 0 < getattr(narrow, part) < getattr(all_of_them, part)
    assert (narrow.weights, narrow.kv) == (all_of_them.weights, all_of_them.kv)


def test_logits_are_outputs(tiny_bundle: Bundle) -> None:
    state = ReplayState(9, 9, tiny_bundle.replay.segments[0], "verify")
    plain, sampled = (
        footprint(tiny_bundle, [replace(state, logits=logits)]) for logits in (False, True)
    )
    logits = 9 * tiny_bundle.model.vocab_size * 4
    assert 2 * logits <= sampled.step - plain.step < 2 * (logits + 256)
    assert sampled.arena == plain.arena


def test_engines_count_the_states_of_one_segment(tiny_bundle: Bundle) -> None:
    one, two = (footprint(tiny_bundle, states_of(tiny_bundle, count)) for count in (1, 2))
    assert one.engines == two.engines


def test_total_and_estimates(tiny_bundle: Bundle) -> None:
    found = footprint(tiny_bundle, states_of(tiny_bundle))
    parts = {name: getattr(found, name) for name in Footprint.__dataclass_fields__}
    assert found.total == sum(parts.values())
    assert found.process == PROCESS_BYTES and set(ESTIMATED) <= parts.keys()


def test_no_states(tiny_bundle: Bundle) -> None:
    with pytest.raises(ValueError, match="no replay states"):
        footprint(tiny_bundle, [])


# ---- the kernels' workspaces ---------------------------------------------------------------------

SIZES = list(
    itertools.product(
        (1, 2, 3, 9, 31, 128),
        (512, 2048, 8192, 8300, 32768),
        ((9, 3, 64), (9, 9, 64), (32, 8, 128)),
    )
)
PROBE = """
#include <cstdio>
#include "attention_layout.cuh"
int main() {
  bitmtp_nested_kv_attention_args a = {};
  while (std::scanf("%d %d %d %d %d", &a.M, &a.capacity, &a.H, &a.Hkv, &a.D) == 5)
    std::printf("%lld\\n", (long long)bitmtp::cuda::attention::attention_layout(a).bytes);
}
"""


def test_attention_asks_for_what_its_layout_says(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, program = tmp_path / "probe.cpp", tmp_path / "probe"
    source.write_text(PROBE)
    plugins = ROOT / "plugins"
    folders = [f"-I{plugins / 'cuda'}", f"-I{plugins / 'include'}"]
    subprocess.run([compiler, "-std=c++17", *folders, source, "-o", program], check=True)
    asked = "\n".join(" ".join(map(str, (m, rows, *sizes))) for m, rows, sizes in SIZES)
    done = subprocess.run([program], input=asked, capture_output=True, text=True, check=True)
    found = [attention_workspace(m, rows, *sizes) for m, rows, sizes in SIZES]
    assert found == [int(line) for line in done.stdout.split()]


def test_the_head_cuts_the_vocabulary_as_the_kernel_does() -> None:
    text = (ROOT / "plugins" / "cuda" / "greedy_head.cuh").read_text()
    rows = re.search(r"kHeadRows = (\d+);", text)
    assert rows is not None
    one = head_workspace({"rows": int(rows[1]), "top_k": 1}, 1)
    assert one == 8 * 2  # a maximum and a sum; a value and an id
    assert head_workspace({"rows": int(rows[1]) + 1, "top_k": 1}, 3) == 2 * 3 * one


@pytest.mark.gpu
def test_no_kernel_asks_for_more(bundle: Bundle) -> None:
    from bitmtp_edge.engines.cuda import CudaEngine

    states = states_of(bundle)
    with CudaEngine(bundle) as engine:
        told = run_all(engine, states)
    found = footprint(bundle, states)
    assert 0 < told["workspace"] <= found.workspace
    assert (found.weights, found.kv, found.arena) == (told["weights"], told["kv"], told["arena"])
