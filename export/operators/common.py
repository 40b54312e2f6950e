"""What the reference bodies share: a graph builder, packing, rules 3 to 5 of docs/numerics.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import helper, numpy_helper

from bitmtp_edge.layout import CODE_BITS, group_count, padded_width, zero_point
from bitmtp_edge.operators import OPERATORS, Attributes, Node

# BitwiseAnd, and reductions with axes as an input, came with 18; ONNX Runtime runs it since 1.14.
OPSET = 18

BYTE_OFFSETS = (0, 8, 16, 24)

_ONNX_TYPE = {
    "float16": onnx.TensorProto.FLOAT16,
    "float32": onnx.TensorProto.FLOAT,
    "int32": onnx.TensorProto.INT32,
    "int64": onnx.TensorProto.INT64,
    "uint32": onnx.TensorProto.UINT32,
    "uint8": onnx.TensorProto.UINT8,
}


class Body:
    """Collects the nodes of one function. Values are names; constants are shared."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._count = 0

    def _name(self) -> str:
        self._count += 1
        return f"_{self._count}"

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node with one output and returns the output's name."""
        output = self._name()
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def ops(self, op: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Adds a node with several outputs."""
        names = [self._name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names

    def const(self, value: ArrayLike, dtype: DTypeLike = np.float32) -> str:
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.op("Constant", value=numpy_helper.from_array(array))
        return self._constants[key]

    def ints(self, *value: int) -> str:
        """An int64 vector: shapes, axes, slice bounds."""
        return self.const(value, np.int64)

    def cast(self, x: str, dtype: str) -> str:
        return self.op("Cast", x, to=_ONNX_TYPE[dtype])

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.ints(*shape))

    def unsqueeze(self, x: str, *axes: int) -> str:
        return self.op("Unsqueeze", x, self.ints(*axes))

    def columns(self, x: str, start: int, stop: int, axis: int = 1) -> str:
        return self.op("Slice", x, self.ints(start), self.ints(stop), self.ints(axis))

    def reduce(self, op: str, x: str, axis: int = -1, keepdims: bool = True) -> str:
        return self.op(op, x, self.ints(axis), keepdims=int(keepdims))

    def give(self, output: str, x: str) -> None:
        """Makes ``x`` the function's output ``output``."""
        self.nodes.append(helper.make_node("Identity", [x], [output]))


def has(node: Node, port: str) -> bool:
    """Whether the optional input or output ``port`` is present."""
    if any(p.name == port for p in OPERATORS[node.op].inputs):
        return node.input(port) != ""
    return node.output(port) != ""


def group_tag(attributes: Attributes) -> str:
    """The part of a signature that tells the scale layout."""
    size = attributes["group_size"]
    return f"g{size}" if size else "row"


def number_tag(value: float) -> str:
    """A float attribute in a signature: the shortest decimal of its fp32 value."""
    return str(np.float32(value))


def weight_tag(node: Node) -> str:
    """The part of an embedding's or head's signature that tells the weight."""
    a = node.attributes
    tag = f"{a['rows']}x{a['width']}_{a['kind']}"
    if a["kind"] != "fp16":
        tag += f"_{group_tag(a)}"
    if a["kind"] == "dual":
        tag += "_w8" if has(node, "refinement") else "_w4"
    return tag


# ---- words ------------------------------------------------------------------------------------


def unpack(b: Body, words: str, offsets: ArrayLike, bits: int) -> str:
    """Codes uint32[..., n] of int32[...]: the ``bits`` bits at each of the n ``offsets``."""
    # BitShift takes no int32; the cast keeps the bits.
    word = b.unsqueeze(b.cast(words, "uint32"), -1)
    shifted = b.op("BitShift", word, b.const(offsets, np.uint32), direction="RIGHT")
    return b.op("BitwiseAnd", shifted, b.const((1 << bits) - 1, np.uint32))


def pack(b: Body, codes: str, offsets: ArrayLike, bits: int) -> str:
    """int32[...] of the codes int32[..., n], each cut to ``bits`` bits; undoes :func:`unpack`."""
    cut = b.op("BitwiseAnd", b.cast(codes, "uint32"), b.const((1 << bits) - 1, np.uint32))
    shifted = b.op("BitShift", cut, b.const(offsets, np.uint32), direction="LEFT")
    # Bits do not meet, so a sum is an or; one term at most is negative, so no sum leaves int32.
    return b.reduce("ReduceSum", b.cast(shifted, "int32"), keepdims=False)


def activation_bytes(b: Body, codes: str) -> str:
    """uint8[M, Kp] of packed codes int32[M, Kp/4]: code + 128."""
    flipped = b.op("BitwiseXor", unpack(b, codes, BYTE_OFFSETS, 8), b.const(128, np.uint32))
    return b.reshape(b.cast(flipped, "uint8"), 0, -1)


# ---- packed weights ---------------------------------------------------------------------------


def code_zero_point(kind: str, nested: bool) -> int:
    """What an unsigned code stands above its value; 16*8 + 8 where base and refinement are one."""
    return 136 if nested else zero_point(CODE_BITS[kind])


def weight_bytes(b: Body, packed: str, kind: str, rows: int, width: int, group_size: int) -> str:
    """uint8[G, group, T*8] of int32[T, words, 8]: unsigned codes, the last group filled with 0."""
    bits = CODE_BITS[kind]
    tiles, kp, groups = -(-rows // 8), padded_width(width), group_count(width, group_size)
    missing = (groups * group_size - kp) * bits // 32 if group_size else 0
    if missing:
        packed = b.op("Pad", packed, b.ints(0, 0, 0, 0, missing, 0))
    # Bytes first: what is then unpacked has one byte a weight, and the lanes stay innermost.
    word = b.unsqueeze(b.cast(packed, "uint32"), 2)
    per_byte = b.const(np.reshape(BYTE_OFFSETS, (4, 1)), np.uint32)
    word = b.op("BitShift", word, per_byte, direction="RIGHT")
    byte = b.cast(b.op("BitwiseAnd", word, b.const(255, np.uint32)), "uint8")
    if bits < 8:
        in_byte = b.const(np.reshape(range(0, 8, bits), (-1, 1, 1)), np.uint8)
        byte = b.op("BitShift", b.unsqueeze(byte, 2), in_byte, direction="RIGHT")
        byte = b.op("BitwiseAnd", byte, b.const((1 << bits) - 1, np.uint8))
    grouped = b.reshape(byte, tiles, groups, -1, 8)
    return b.reshape(b.op("Transpose", grouped, perm=[1, 2, 0, 3]), groups, -1, tiles * 8)


def linear(
    b: Body, codes: str, act_scale: str, packed: str, refinement: str, kind: str, a: Attributes
) -> str:
    """fp32[M, N] by rule 5, without the residual, with the port ``scales``. ``refinement`` is ""
    where there is none."""
    rows, width, group_size = int(a["rows"]), int(a["width"]), int(a["group_size"])
    groups, kp = group_count(width, group_size), padded_width(width)
    weight = weight_bytes(b, packed, kind, rows, width, group_size)
    if refinement:
        low = weight_bytes(b, refinement, kind, rows, width, group_size)
        high = b.op("BitShift", weight, b.const(4, np.uint8), direction="LEFT")
        weight = b.op("BitwiseOr", high, low)
    zero = b.const(code_zero_point(kind, bool(refinement)), np.uint8)

    x = activation_bytes(b, codes)
    missing = groups * group_size - kp if group_size else 0
    if missing:  # code 0 here, whatever the weights hold there
        x = b.op("Pad", x, b.ints(0, 0, 0, missing), b.const(128, np.uint8))
    x = b.op("Transpose", b.reshape(x, 0, groups, -1), perm=[1, 0, 2])
    # Both sides unsigned: products of mixed signs may saturate in ONNX Runtime on x86 without VNNI.
    # The int32 sum is exact: modulo 2^32 on the way, and |dot| <= K * 128 * 128 < 2^31 at its end
    # for any K below 131,072.
    dot = b.op("MatMulInteger", x, weight, b.const(128, np.uint8), zero)  # int32[G, M, T*8]
    group_scale = weight_scales(b, "scales", bool(refinement))
    group_scale = b.reshape(b.op("Transpose", group_scale, perm=[1, 0, 2]), groups, 1, -1)
    terms = b.op("Mul", b.cast(dot, "float32"), group_scale)
    acc = b.columns(b.reduce("ReduceSum", terms, axis=0, keepdims=False), 0, rows)
    return b.op("Mul", acc, b.unsqueeze(act_scale, 1))


def weight_scales(b: Body, scales: str, nested: bool) -> str:
    """fp32 of the fp16 scales; a sixteenth of them, exactly, where the codes are composed."""
    wide = b.cast(scales, "float32")
    return b.op("Mul", wide, b.const(0.0625)) if nested else wide


# ---- rules 3 and 4 ----------------------------------------------------------------------------


def rms_norm(b: Body, x: str, weight: str, width: int, epsilon: float) -> str:
    """Rule 4 over the last axis, ``width`` long."""
    mean = b.op("Div", b.reduce("ReduceSum", b.op("Mul", x, x)), b.const(width))
    root = b.op("Sqrt", b.op("Add", mean, b.const(epsilon)))
    return b.op("Mul", b.op("Mul", x, b.op("Div", b.const(1.0), root)), weight)


def absmax(b: Body, x: str, floor: float) -> str:
    """max(max|x|, floor) over the last axis, kept as an axis of 1."""
    return b.op("Max", b.reduce("ReduceMax", b.op("Abs", x)), b.const(floor))


def round_codes(b: Body, x: str, low: int, high: int) -> str:
    """fp32 codes: ``x`` rounded half to even, clamped to [low, high]."""
    return b.op("Clip", b.op("Round", x), b.const(float(low)), b.const(float(high)))


def give_quantised(b: Body, x: str, width: int, scale: str) -> None:
    """Rule 3 of x fp32[M, width]: the outputs ``codes`` int32[M, pad(width)/4] and ``scale`` (a
    port's name) fp32[M]."""
    amax = absmax(b, x, 1e-10)
    inverse = b.op("Div", b.const(127.0), amax)
    code = b.cast(round_codes(b, b.op("Mul", x, inverse), -127, 127), "int32")
    missing = padded_width(width) - width
    if missing:
        code = b.op("Pad", code, b.ints(0, 0, 0, missing))
    b.give("codes", pack(b, b.reshape(code, 0, padded_width(width) // 4, 4), BYTE_OFFSETS, 8))
    b.give(scale, b.reshape(b.op("Div", amax, b.const(127.0)), -1))
