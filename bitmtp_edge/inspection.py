"""What a bundle holds and what it costs, from its manifest alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .bundle import GRAPH_FILES, WEIGHTS_FILE, Bundle
from .decode.replay_states import ReplayStates
from .operators import Node, kv_row_specs

PLANES = ("base", "refinement", "ternary", "int8", "scales")


def kv_bytes_per_token(bundle: Bundle) -> dict[str, int]:
    """Bytes that one token's K and V take over all layers: in fp16, KV8 (both planes) and KV4.

    KV8 and KV4 count their fp16 scales, one for each K and V head.
    """
    model = bundle.model
    heads = 2 * model.num_layers * model.num_kv_heads
    dim = model.head_dim
    return {"fp16": heads * dim * 2, "kv8": heads * (dim + 2), "kv4": heads * (dim // 2 + 2)}


def plane_bytes(bundle: Bundle) -> dict[str, int]:
    """Bytes of weights.bin by plane: those of :data:`PLANES` that there are, and the rest under
    "other"."""
    sizes = dict.fromkeys((*PLANES, "other"), 0)
    for name, entry in bundle.tensors.items():
        plane = name.rpartition(".")[2]
        sizes[plane if plane in PLANES else "other"] += entry.bytes
    return {plane: size for plane, size in sizes.items() if size}


def role_weight_bytes(bundle: Bundle, role: str) -> int:
    """Bytes of weights that one step of ``role`` reads, single rows of embedding and rotary table
    apart."""
    read: set[str] = set()
    for node in bundle.nodes(role):
        if node.op != "TokenEmbedding":
            read.update(name for name in node.inputs if name in bundle.tensors)
    return sum(bundle.tensors[name].bytes for name in read if name != "rotary")


def kv_row_bytes(bundle: Bundle) -> int:
    """Bytes of one stored row of K and V, of all layers."""
    return sum(_kv_row_bytes(node) for node in bundle.nodes("verify"))


def kv_buffer_bytes(bundle: Bundle, segment: int) -> int:
    """Bytes of the KV buffer of ``segment`` history rows and M_max workspace rows."""
    return kv_row_bytes(bundle) * (segment + bundle.replay.max_width)


def multiply_adds(nodes: Sequence[Node], width: int, outputs: int) -> int:
    """Products of weights with the activations of a step of ``width`` slots and ``outputs`` head
    slots; attention, whose work grows with the history, apart."""
    total = 0
    for node in nodes:
        if node.op in ("TernaryLinear", "DualPlaneLinear", "GreedyHead"):
            slots = outputs if node.op == "GreedyHead" else width
            total += slots * int(node.attributes["rows"]) * int(node.attributes["width"])
    return total


def replay_state_costs(bundle: Bundle) -> list[dict[str, Any]]:
    """Every replay state of drafts of the bundle's own block, and what a step in it costs.

    weight_bytes: read. multiply_adds: see :func:`multiply_adds`. kv_read_bytes: of the history, at
    most, where the segment is full. kv_written_bytes: of the window's rows.
    """
    nodes = {role: bundle.nodes(role) for role in GRAPH_FILES}
    weights = {role: role_weight_bytes(bundle, role) for role in nodes}
    row = kv_row_bytes(bundle)
    return [
        {
            "role": state.role,
            "width": state.width,
            "outputs": state.outputs,
            "segment": state.segment,
            "weight_bytes": weights[state.role],
            "multiply_adds": multiply_adds(nodes[state.role], state.width, state.outputs),
            "kv_read_bytes": row * state.segment,
            "kv_written_bytes": row * state.width,
        }
        for state in ReplayStates.of(bundle).all()
    ]


def _kv_row_bytes(node: Node) -> int:
    if node.op != "NestedKVAttention":
        return 0
    sizes = {"int32": 4, "float16": 2}
    return sum(sizes[dtype] * shape[1] for dtype, shape in kv_row_specs(node.attributes, 1))


def summarise(bundle: Bundle) -> dict[str, Any]:
    """Everything that ``inspect --json`` prints."""
    replay = bundle.replay
    return {
        "path": str(bundle.path),
        "sdk": bundle.manifest.sdk,
        "model": asdict(bundle.model),
        "decoding": asdict(bundle.decoding),
        "operators": list(bundle.manifest.operators),
        "nodes": {role: len(nodes) for role, nodes in bundle.manifest.graphs.items()},
        "files": {name: entry.bytes for name, entry in sorted(bundle.manifest.files.items())},
        "weights_bytes": bundle.manifest.files[WEIGHTS_FILE].bytes,
        "plane_bytes": plane_bytes(bundle),
        "step_weight_bytes": {r: role_weight_bytes(bundle, r) for r in ("draft", "verify")},
        "kv_bytes_per_token": kv_bytes_per_token(bundle),
        "replay_states": replay_state_costs(bundle),
        "kv_workspace_bytes": kv_row_bytes(bundle) * replay.max_width,
        "kv_buffer_bytes": {str(s): kv_buffer_bytes(bundle, s) for s in replay.segments},
    }
