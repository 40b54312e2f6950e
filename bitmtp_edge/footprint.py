"""Bytes of memory that decoding a bundle takes, from bundle.json alone: no device is asked.

What it takes is that of engine ``tensorrt`` on a board whose processor and GPU share one memory.
Everything our own code lays out is computed as the engines do it; what CUDA, TensorRT and Python
take is estimated, and :data:`ESTIMATED` names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from .bundle import Bundle
from .engines.arena import ALIGNMENT, place
from .engines.base import ReplayState, Role
from .engines.gpu_kv import workspace_row
from .engines.kv_buffer import kv_planes
from .engines.step_layout import in_a_row, input_specs, lifetimes, tensor_specs
from .operators import STEP_INPUTS, STEP_OUTPUTS, Attributes, Node, kv_row_specs

ESTIMATED = ("engines", "process")

# A captured graph: 8 MiB of an H200 for the 28 states of a model of 242 nodes, kernels included.
GRAPH_BYTES_A_NODE = 1280
# A deserialised plan without weights and its execution context. A guess: none was ever built.
PLAN_BYTES_A_NODE = 8192
# CUDA's context with our kernels, TensorRT's runtime, and Python with its packages and a tokenizer
# of 150,000 tokens. Python's part is 90 MiB on another machine; the rest is a guess for Orin.
PROCESS_BYTES = 640 << 20


@dataclass(frozen=True)
class Footprint:
    """Bytes at the peak, by what for.

    weights: one copy of weights.bin. kv: the buffer of the largest segment, workspace rows too.
    kv_growth: the buffer before that one, which is there until its history has moved; 0 with one
    segment. arena: what operators hand to each other, of the widest step. workspace: of the
    operator that needs most. step: inputs and outputs, on the GPU and page-locked. engines: plans,
    execution contexts and CUDA graphs of the segment that has most states. process: CUDA, TensorRT
    and Python.
    """

    weights: int
    kv: int
    kv_growth: int
    arena: int
    workspace: int
    step: int
    engines: int
    process: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


def footprint(bundle: Bundle, states: Iterable[ReplayState]) -> Footprint:
    """The peak of decoding ``bundle`` with ``states``, of one or of several segments.

    Raises ValueError where there are none.
    """
    wanted = sorted(set(states), key=lambda state: (state.segment, state.role, state.width))
    if not wanted:
        raise ValueError("no replay states")
    nodes: dict[Role, list[Node]] = {role: bundle.nodes(role) for role in ("draft", "verify")}
    segments = sorted({state.segment for state in wanted})
    buffers = [kv_bytes(bundle, segment) for segment in segments]
    kinds = sorted({(state.role, state.logits) for state in wanted})
    arena, step = 0, 2 * in_a_row(input_specs(*_widest(wanted)))[1]
    for role, logits in kinds:
        own = [state for state in wanted if (state.role, state.logits) == (role, logits)]
        specs = tensor_specs(nodes[role], *_widest(own), _kv_outputs(nodes[role]), logits)
        outputs = {name: specs.pop(name) for name in STEP_OUTPUTS if name in specs}
        within = {name: spec for name, spec in specs.items() if name not in STEP_INPUTS}
        lives = lifetimes(nodes[role], within, keep=False)
        arena = max(arena, place(lives)[1])
        step += 2 * in_a_row(outputs)[1]
    a_state = len(nodes["verify"]) * (PLAN_BYTES_A_NODE + GRAPH_BYTES_A_NODE)
    most = max(sum(state.segment == segment for state in wanted) for segment in segments)
    return Footprint(
        weights=weight_bytes(bundle),
        kv=buffers[-1],
        kv_growth=buffers[-2] if len(buffers) > 1 else 0,
        arena=arena,
        workspace=max(workspace_bytes(nodes[state.role], state) for state in wanted),
        step=step,
        engines=most * a_state,
        process=PROCESS_BYTES,
    )


def weight_bytes(bundle: Bundle) -> int:
    """Of the block that weights.bin is loaded into."""
    return max((entry.offset + entry.bytes for entry in bundle.tensors.values()), default=0)


def kv_bytes(bundle: Bundle, segment: int) -> int:
    """Of a KV buffer of ``segment`` history rows and the workspace rows of the widest window."""
    slots = workspace_row(segment) + bundle.replay.max_width
    return kv_planes(bundle.nodes("verify"), slots)[1]


def workspace_bytes(nodes: Sequence[Node], state: ReplayState) -> int:
    """The most that a CUDA kernel of ``nodes`` asks for in a step of ``state``."""
    attention = {
        tuple(int(node.attributes[name]) for name in ("num_heads", "num_kv_heads", "head_dim"))
        for node in nodes
        if node.op == "NestedKVAttention"
    }
    needs = [attention_workspace(state.width, state.segment, *sizes) for sizes in attention]
    needs += [
        head_workspace(node.attributes, state.outputs) for node in nodes if node.op == "GreedyHead"
    ]
    return max(needs, default=0)


# Attention's workspace, as plugins/cuda/attention_layout.cuh lays it out: positions form units,
# wider ones further on.
_UNIT_WIDTHS = ((2048, 64), (8192, 256))  # positions below the first number: so many a unit
_LAST_UNIT_WIDTH = 512
_MOST_PARTIALS = 64 << 20
_TILE = 8  # query vectors of a KV head, prepared beforehand in windows wider than _OWN_ROWS
_OWN_ROWS = 2


def attention_workspace(width: int, capacity: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """Bytes that NestedKVAttention asks for, of ``width`` rows behind up to ``capacity``."""
    units = _units(capacity + width)
    fit = _MOST_PARTIALS // (units * heads * (head_dim + 2) * 4) // 8 * 8
    rows = width if fit >= width else min(width, 8) if fit < 8 else fit
    parts = [units * rows * heads * size for size in (head_dim * 4, 8)]
    if width > _OWN_ROWS:
        queries = kv_heads * -(-width * (heads // kv_heads) // _TILE) * _TILE
        parts += [queries * size for size in (head_dim * 4, 8)]
    return sum(-(-part // ALIGNMENT) * ALIGNMENT for part in parts)


def _units(positions: int) -> int:
    count, start = 0, 0
    for end, width in _UNIT_WIDTHS:
        count += -(-max(min(positions, end) - start, 0) // width)
        start = end
    return count + -(-max(positions - start, 0) // _LAST_UNIT_WIDTH)


_HEAD_ROWS = 32  # of the vocabulary, a block: plugins/cuda/greedy_head.cuh


def head_workspace(attributes: Attributes, outputs: int) -> int:
    """Bytes that GreedyHead asks for: of every output and block, a maximum, a sum, and ``top_k``
    values and ids."""
    blocks = -(-int(attributes["rows"]) // _HEAD_ROWS)
    return 8 * blocks * outputs * (1 + int(attributes["top_k"]))


def _widest(states: Sequence[ReplayState]) -> tuple[int, int]:
    return max(state.width for state in states), max(state.outputs for state in states)


def _kv_outputs(nodes: Sequence[Node]) -> set[str]:
    """Names of the new K and V rows, which are outputs into the KV buffer."""
    found: set[str] = set()
    for node in nodes:
        if node.op == "NestedKVAttention":
            ports = ("new_rows", "new_refinement", "new_scale")
            planes = kv_row_specs(node.attributes, 1)
            found.update(node.output(port) for port, _ in zip(ports, planes, strict=False))
    return found
