"""What goes in and out of a TensorRT engine of ours: names, dtypes, shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..bundle import Bundle
from ..operators import STEP_OUTPUTS, Spec
from .base import ReplayState
from .kv_buffer import kv_planes
from .step_layout import input_specs, tensor_specs

DATA_TYPES = {"int32": "INT32", "float16": "HALF", "float32": "FLOAT"}  # of tensorrt.DataType


@dataclass(frozen=True)
class EngineTensors:
    """Specs by name. inputs: the step's, every weight of its graph, and KV history. outputs: the
    step's. rows: the new K and V rows, which are outputs as well."""

    inputs: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    rows: Mapping[str, Spec]

    def differences(self, inputs: Mapping[str, Spec], outputs: Mapping[str, Spec]) -> list[str]:
        """What of this is otherwise there, a phrase each; extra tensors as well."""
        told = []
        for kind, ours, theirs in (
            ("input", self.inputs, inputs),
            ("output", {**self.outputs, **self.rows}, outputs),
        ):
            for name in dict.fromkeys((*ours, *theirs)):
                want, found = ours.get(name), theirs.get(name)
                if want != found:
                    told.append(f"{kind} {name!r} is {_told(found)}, expected {_told(want)}")
        return told


def engine_tensors(bundle: Bundle, state: ReplayState) -> EngineTensors:
    """Of the engine of ``state``, by bundle.json."""
    nodes = bundle.nodes(state.role)
    planes, _ = kv_planes(nodes, state.segment)
    rows, _ = kv_planes(nodes, state.width)
    made = tensor_specs(nodes, state.width, state.outputs, (), state.logits)
    used = dict.fromkeys(name for node in nodes for name in node.inputs if name)
    every: dict[str, Spec] = {
        **input_specs(state.width, state.outputs),
        **{name: (entry.dtype, entry.shape) for name, entry in bundle.tensors.items()},
        **{plane.history: plane.spec for plane in planes},
    }
    return EngineTensors(
        inputs={name: every[name] for name in used if name in every},
        outputs={name: made[name] for name in STEP_OUTPUTS if name in made},
        rows={plane.rows: plane.spec for plane in rows},
    )


def spec_of(trt: Any, dtype: Any, shape: Any) -> Spec:
    """The spec of TensorRT's own dtype and shape; of other dtypes than ours the name is
    TensorRT's."""
    for name, theirs in DATA_TYPES.items():
        if dtype == getattr(trt.DataType, theirs):
            return name, tuple(shape)
    return str(dtype), tuple(shape)


def _told(spec: Spec | None) -> str:
    return "missing" if spec is None else f"{spec[0]}{list(spec[1])}"
