"""Graph nodes to the C records of both libraries, with every shape checked before C sees it.

One function an operator; the records are those of plugins/include/bitmtp/abi.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from .. import layout
from ..errors import UserError
from ..operators import OPERATORS, Node, kv_row_specs
from . import abi


@dataclass(frozen=True)
class DeviceArray:
    """A row-major array in memory that the host does not read: what a record says of it."""

    address: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)


Tensor = NDArray[Any] | DeviceArray
Tensors = Mapping[str, Tensor]
_KINDS = {"fp16": abi.FP16, "int8": abi.INT8, "ternary": abi.TERNARY, "dual": abi.DUAL}


class _Binder:
    """The tensors of one node; gives pointers, and refuses a tensor that does not fit."""

    def __init__(self, node: Node, tensors: Tensors, m: int, h: int) -> None:
        self.node, self.m, self.h = node, m, h
        self._tensors = tensors

    def integer(self, attribute: str) -> int:
        return int(self.node.attributes[attribute])

    def real(self, attribute: str) -> float:
        return float(self.node.attributes[attribute])

    def text(self, attribute: str) -> str:
        return str(self.node.attributes[attribute])

    def array(self, port: str) -> Tensor | None:
        return self._tensors.get(self.node.input(port))

    def pointer(self, port: str, dtype: str, shape: tuple[int, ...]) -> int | None:
        """Address of an input; None where it is absent. -1 in ``shape`` takes any size."""
        return self._address(self.node.input(port), port, dtype, shape)

    def outputs(self) -> dict[str, int | None]:
        """Addresses of the outputs, None for those that nobody wants."""
        operator = OPERATORS[self.node.op]
        specs = operator.output_specs(self.node.attributes, self.m, self.h)
        return {
            port.name: self._address(self.node.output(port.name), port.name, *spec)
            for port, spec in zip(operator.outputs, specs, strict=False)
        }

    def _address(self, name: str, port: str, dtype: str, shape: tuple[int, ...]) -> int | None:
        if not name:
            return None
        array = self._tensors.get(name)
        if array is None:
            return None
        fits = array.ndim == len(shape) and all(
            want in (-1, have) for want, have in zip(shape, array.shape, strict=True)
        )
        if isinstance(array, DeviceArray):
            contiguous, address = True, array.address
        else:
            contiguous, address = array.flags.c_contiguous, array.ctypes.data
        if array.dtype != dtype or not fits or not contiguous:
            found = f"{array.dtype}{list(array.shape)}"
            raise UserError(
                f"node {self.node.name!r}: {port} {name!r} is {found}, expected "
                f"{dtype}{list(shape)}: export the bundle again"
            )
        return address

    def weight(self, kind: str, table: str) -> abi.Weight:
        rows, width = self.integer("rows"), self.integer("width")
        group_size = self.integer("group_size")
        if kind not in _KINDS or group_size not in (0, 64, 128):
            raise UserError(
                f"node {self.node.name!r}: weight kind {kind!r} with groups of {group_size} is "
                "not one this SDK knows: export the bundle again"
            )
        record = abi.Weight(kind=_KINDS[kind], rows=rows, width=width, group_size=group_size)
        if kind == "fp16":
            record.table = self.pointer(table, "float16", (rows, width))
            return record
        packed = layout.packed_shape(rows, width, layout.CODE_BITS[kind])
        record.table = self.pointer(table, "int32", packed)
        record.scales = self.pointer(
            "scales", "float16", layout.scales_shape(rows, width, group_size)
        )
        if kind == "dual":
            record.refinement = self.pointer("refinement", "int32", packed)
        return record

    def codes(self, width: int) -> dict[str, int | None]:
        return {
            "codes": self.pointer("codes", "int32", (self.m, layout.padded_width(width) // 4)),
            "act_scale": self.pointer("act_scale", "float32", (self.m,)),
        }


def _token_embedding(b: _Binder) -> ctypes.Structure:
    width = b.integer("width")
    masks = b.array("mask_embeddings")
    return abi.TokenEmbeddingArgs(
        token_ids=b.pointer("token_ids", "int32", (b.m,)),
        mask_embeddings=b.pointer("mask_embeddings", "float32", (-1, width)),
        weight=b.weight(b.text("kind"), "table"),
        M=b.m,
        P=0 if masks is None else masks.shape[0],
        **b.outputs(),
    )


def _rms_norm_quant(b: _Binder) -> ctypes.Structure:
    width = b.integer("width")
    outputs = b.outputs()
    return abi.RmsNormQuantArgs(
        hidden=b.pointer("hidden", "float32", (b.m, width)),
        weight=b.pointer("weight", "float32", (width,)),
        codes=outputs["codes"],
        scale=outputs["act_scale"],
        epsilon=b.real("epsilon"),
        M=b.m,
        K=width,
    )


def _linear(b: _Binder, kind: str, table: str) -> ctypes.Structure:
    return abi.LinearArgs(
        **b.codes(b.integer("width")),
        weight=b.weight(kind, table),
        residual=b.pointer("residual", "float32", (b.m, b.integer("rows"))),
        M=b.m,
        **b.outputs(),
    )


def _nested_kv_attention(b: _Binder) -> ctypes.Structure:
    heads, kv_heads, dim = (b.integer(n) for n in ("num_heads", "num_kv_heads", "head_dim"))
    width = (heads + 2 * kv_heads) * dim
    history, rotary = b.array("history"), b.array("rotary")
    assert history is not None and rotary is not None  # Bundle.open saw to it
    capacity = history.shape[0]
    planes = [*kv_row_specs(b.node.attributes, capacity)]
    ports = ("history", "history_refinement", "history_scale")
    return abi.NestedKVAttentionArgs(
        qkv=b.pointer("qkv", "float32", (b.m, width)),
        positions=b.pointer("positions", "int32", (b.m,)),
        mask=b.pointer("mask", "int32", (b.m, -(-b.m // 32))),
        history_length=b.pointer("history_length", "int32", (1,)),
        kv4_length=b.pointer("kv4_length", "int32", (1,)),
        rotary=b.pointer("rotary", "float32", (-1, dim)),
        **{port: b.pointer(port, *spec) for port, spec in zip(ports, planes, strict=False)},
        qkv_bias=b.pointer("qkv_bias", "float32", (width,)),
        q_norm=b.pointer("q_norm", "float32", (dim,)),
        k_norm=b.pointer("k_norm", "float32", (dim,)),
        sub_norm=b.pointer("sub_norm", "float32", (heads * dim,)),
        softmax_scale=b.real("softmax_scale"),
        epsilon=b.real("epsilon"),
        M=b.m,
        H=heads,
        Hkv=kv_heads,
        D=dim,
        capacity=capacity,
        rotary_rows=rotary.shape[0],
        kv_kind=abi.KV_FP16 if b.text("kv") == "fp16" else abi.KV_NESTED,
        **b.outputs(),
    )


def _gated_act_quant(b: _Binder) -> ctypes.Structure:
    width = b.integer("width")
    outputs = b.outputs()
    return abi.GatedActQuantArgs(
        gate_up=b.pointer("gate_up", "float32", (b.m, 2 * width)),
        sub_norm=b.pointer("sub_norm", "float32", (width,)),
        codes=outputs["codes"],
        scale=outputs["act_scale"],
        epsilon=b.real("epsilon"),
        M=b.m,
        F=width,
        activation=abi.RELU2 if b.text("activation") == "relu2" else abi.SILU,
    )


def _greedy_head(b: _Binder) -> ctypes.Structure:
    return abi.GreedyHeadArgs(
        **b.codes(b.integer("width")),
        head_slots=b.pointer("head_slots", "int32", (b.h,)),
        weight=b.weight(b.text("kind"), "table"),
        M=b.m,
        h=b.h,
        top_k=b.integer("top_k"),
        **b.outputs(),
    )


_BUILDERS: dict[str, tuple[int, Callable[[_Binder], ctypes.Structure]]] = {
    "TokenEmbedding": (abi.TOKEN_EMBEDDING, _token_embedding),
    "RmsNormQuant": (abi.RMS_NORM_QUANT, _rms_norm_quant),
    "TernaryLinear": (abi.TERNARY_LINEAR, lambda b: _linear(b, "ternary", "packed")),
    "DualPlaneLinear": (abi.DUAL_PLANE_LINEAR, lambda b: _linear(b, "dual", "base")),
    "NestedKVAttention": (abi.NESTED_KV_ATTENTION, _nested_kv_attention),
    "GatedActQuant": (abi.GATED_ACT_QUANT, _gated_act_quant),
    "GreedyHead": (abi.GREEDY_HEAD, _greedy_head),
}


def build_call(node: Node, tensors: Tensors, m: int, h: int) -> tuple[int, Any]:
    """The operator's number and its C record for a window of ``m`` slots with ``h`` outputs.

    ``tensors`` has the node's inputs and those outputs that are wanted, by name; they must outlive
    the record. The record's ``workspace`` is left for the caller. Raises UserError where a tensor's
    dtype or shape is not what the node's attributes ask for.
    """
    op, builder = _BUILDERS[node.op]
    return op, builder(_Binder(node, tensors, m, h))


def narrow_call(record: Any, m: int, h: int) -> None:
    """Makes a call's record that of a narrower window, whose tensors are the first rows of what it
    points at: no record holds another size that depends on the window."""
    record.M = m
    if isinstance(record, abi.GreedyHeadArgs):
        record.h = h
