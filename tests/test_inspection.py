"""What a bundle costs, from its manifest."""

from __future__ import annotations

import json

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.kv_buffer import KVBuffer
from bitmtp_edge.inspection import (
    kv_buffer_bytes,
    kv_bytes_per_token,
    kv_row_bytes,
    plane_bytes,
    role_weight_bytes,
    summarise,
)

LAYERS, KV_HEADS, DIM = 2, 2, 64


def test_kv_bytes_of_a_token(tiny_bundle: Bundle) -> None:
    heads = 2 * LAYERS * KV_HEADS
    assert kv_bytes_per_token(tiny_bundle) == {
        "fp16": heads * DIM * 2,
        "kv8": heads * (DIM + 2),
        "kv4": heads * (DIM // 2 + 2),
    }


def test_planes(tiny_bundle: Bundle) -> None:
    planes = plane_bytes(tiny_bundle)
    assert list(planes) == ["base", "refinement", "scales", "other"]
    assert sum(planes.values()) == sum(entry.bytes for entry in tiny_bundle.tensors.values())
    assert planes["base"] == planes["refinement"] > planes["scales"]
    vectors = (2 * LAYERS + 1) * 128 * 4
    rotary = tiny_bundle.tensors["rotary"].bytes
    assert planes["other"] == vectors + rotary


def test_what_a_step_reads(tiny_bundle: Bundle) -> None:
    """The verifier reads one plane more, and a tied head's only once."""
    draft, verify = (role_weight_bytes(tiny_bundle, role) for role in ("draft", "verify"))
    planes = plane_bytes(tiny_bundle)
    assert verify - draft == planes["refinement"]
    rotary = tiny_bundle.tensors["rotary"].bytes
    assert verify == sum(planes.values()) - rotary


@pytest.mark.parametrize("name", ["tiny_bundle", "fp16_bundle"])
def test_the_kv_buffer(name: str, request: pytest.FixtureRequest) -> None:
    """What is told is what an engine takes, its padding apart."""
    bundle: Bundle = request.getfixturevalue(name)
    buffer = KVBuffer(bundle.nodes("verify"), 512, bundle.replay.max_width)
    assert kv_buffer_bytes(bundle, 512) == sum(plane.nbytes for plane in buffer.planes)
    per_token = kv_bytes_per_token(bundle)["fp16" if name == "fp16_bundle" else "kv8"]
    assert kv_buffer_bytes(bundle, 512) == per_token * (512 + 128)


def test_the_summary(tiny_bundle: Bundle) -> None:
    facts = summarise(tiny_bundle)
    assert json.loads(json.dumps(facts)).keys() == facts.keys()
    assert facts["model"]["hidden_size"] == 128
    assert facts["nodes"] == {"draft": 19, "verify": 19}
    assert facts["weights_bytes"] == (tiny_bundle.path / "weights.bin").stat().st_size
    states = facts["replay_states"]
    replay = tiny_bundle.replay
    shapes = {(s["role"], s["width"], s["outputs"]) for s in states}
    assert len(states) == len(replay.segments) * len(shapes)
    assert {width for role, width, _ in shapes if role == "draft"} == set(replay.draft_widths)
    assert {width for role, width, _ in shapes if role == "verify"} == set(replay.verify_widths)
    assert {("verify", 5, 5), ("verify", 5, 1), ("verify", 1, 1)} <= shapes
    keys = ("role", "width", "outputs", "segment")
    assert ("draft", 1, 1, 512) in [tuple(s[key] for key in keys) for s in states]
    row = kv_row_bytes(tiny_bundle)
    assert facts["kv_workspace_bytes"] == row * replay.max_width
    assert facts["kv_buffer_bytes"].keys() == {str(s) for s in replay.segments}


def test_what_a_replay_state_costs(tiny_ternary_bundle: Bundle) -> None:
    """Every width of blocks of 4, in every segment; linears a slot, the head an output."""
    facts = summarise(tiny_ternary_bundle)
    model, replay = tiny_ternary_bundle.model, tiny_ternary_bundle.replay
    states = [s for s in facts["replay_states"] if s["segment"] == replay.segments[-1]]
    assert len(facts["replay_states"]) == len(states) * len(replay.segments)
    drafts = [(s["width"], s["outputs"]) for s in states if s["role"] == "draft"]
    assert drafts == [(width, min(width, 4)) for width in range(1, 8)]
    verifying = {(s["width"], s["outputs"]) for s in states if s["role"] == "verify"}
    assert {(1, 1), (5, 5), (5, 1), (128, 1)} <= verifying
    hidden, inner = model.hidden_size, model.intermediate_size
    heads = (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    slot = model.num_layers * hidden * (heads + 3 * inner)
    for state in states:
        products = state["width"] * slot + state["outputs"] * hidden * model.vocab_size
        assert state["multiply_adds"] == products
        assert state["kv_written_bytes"] == state["width"] * kv_row_bytes(tiny_ternary_bundle)
        assert state["kv_read_bytes"] == replay.segments[-1] * kv_row_bytes(tiny_ternary_bundle)
        assert state["weight_bytes"] == facts["step_weight_bytes"][state["role"]]
