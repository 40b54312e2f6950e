"""What a step would take on a GPU that is not here: a prediction from bytes, clocks and nodes.

A step reads its weights and the history once, or unpacks them at the rate its multiprocessors can,
whichever takes longer; and every node of its graph waits for the one before. What that wait costs
was measured on an H200 and is scaled by the clock alone. Nothing of it was measured on a Jetson.
"""

from __future__ import annotations

from dataclasses import dataclass

from bitmtp_edge.profiles import PowerMode

from .bundle import GRAPH_FILES, Bundle
from .engines.base import Role
from .inspection import kv_row_bytes, role_weight_bytes
from .operators import Node

SCHEDULERS = 4  # of a multiprocessor, each with one warp's instruction a cycle
SLOTS_AT_ONCE = 16  # of a window, that a weight is unpacked for once


@dataclass(frozen=True)
class Assumption:
    """A number that the prediction rests on, and where it is from."""

    name: str
    value: float
    unit: str
    source: str


BANDWIDTH_SHARE = Assumption(
    "share of the bandwidth",
    0.75,
    "of the nominal",
    "W4A8 at one slot reads at 77 % of an H200's (docs/benchmarks.md); the BitNest paper's fp16 "
    "Llama-2-7B reads at 79 % of an Orin NX's (its Table 13)",
)
NODE_CYCLES = Assumption(
    "a node of the graph",
    4500.0,
    "GPU cycles",
    "AR steps of bonsai-1.7b and bitnet-2b on an H200, less their bytes: 2.3 us a node at 1.98 GHz",
)
SLOT_CYCLES = Assumption(
    "a node, each further slot",
    220.0,
    "GPU cycles",
    "steps of 9 and 15 slots of the same models, over those of one",
)
WEIGHTS_PER_CYCLE = Assumption(
    "weights unpacked and multiplied",
    16.0,
    "a cycle and scheduler, for up to 16 slots",
    "ternary windows on an H200 (docs/cuda.md); taken for every kind of weight",
)
ASSUMPTIONS = (BANDWIDTH_SHARE, NODE_CYCLES, SLOT_CYCLES, WEIGHTS_PER_CYCLE)


class StepPrediction:
    """Steps of ``bundle`` on a board in ``mode``."""

    def __init__(self, bundle: Bundle, mode: PowerMode) -> None:
        self._mode = mode
        self._nodes = {role: bundle.nodes(role) for role in GRAPH_FILES}
        self._weights = {role: role_weight_bytes(bundle, role) for role in GRAPH_FILES}
        self._kv_row = kv_row_bytes(bundle)

    def seconds(self, role: Role, width: int, outputs: int, history: int) -> float:
        """Of a step of ``width`` slots and ``outputs`` head slots behind ``history`` rows."""
        clock = self._mode.gpu_mhz * 1e6
        units = self._mode.multiprocessors * SCHEDULERS * WEIGHTS_PER_CYCLE.value
        unpacking = _unpacked(self._nodes[role], width, outputs) / (units * clock)
        reading = self.least_seconds(role, history) / BANDWIDTH_SHARE.value
        cycles = NODE_CYCLES.value + SLOT_CYCLES.value * (width - 1)
        return max(reading, unpacking) + len(self._nodes[role]) * cycles / clock

    def least_seconds(self, role: Role, history: int) -> float:
        """Of reading the step's bytes at the nominal bandwidth: no step is faster."""
        read = self._weights[role] + self._kv_row * history
        return read / (self._mode.bandwidth_gb_s * 1e9)


def _unpacked(nodes: list[Node], width: int, outputs: int) -> int:
    """Weights, each as often as a step of ``width`` slots unpacks it."""
    total = 0
    for node in nodes:
        if node.op in ("TernaryLinear", "DualPlaneLinear", "GreedyHead"):
            slots = outputs if node.op == "GreedyHead" else width
            size = int(node.attributes["rows"]) * int(node.attributes["width"])
            total += size * -(-slots // SLOTS_AT_ONCE)
    return total
