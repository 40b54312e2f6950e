"""GreedyHead: output projection of the chosen slots, top-k and softmax probability."""

from __future__ import annotations

import numpy as np

from bitmtp_edge.operators import Node

from .common import Body, activation_bytes, has, linear, weight_tag


def signature(node: Node) -> str:
    logits = "_logits" if has(node, "logits") else ""
    return f"head_{weight_tag(node)}_top{node.attributes['top_k']}{logits}"


def body(b: Body, node: Node) -> None:
    a, kind = node.attributes, str(node.attributes["kind"])
    codes = b.op("Gather", "codes", "head_slots")
    act_scale = b.op("Gather", "act_scale", "head_slots")
    if kind == "fp16":
        x = b.op("Sub", b.cast(activation_bytes(b, codes), "float32"), b.const(128.0))
        x = b.columns(x, 0, int(a["width"]))
        dot = b.op("Gemm", x, b.cast("table", "float32"), transB=1)
        logits = b.op("Mul", dot, b.unsqueeze(act_scale, 1))
    else:
        refinement = "refinement" if has(node, "refinement") else ""
        logits = linear(b, codes, act_scale, "table", refinement, kind, a)
    # TopK puts the lower index first among equals, as rule 12 wants.
    top, ids = b.ops("TopK", 2, logits, b.const([int(a["top_k"])], np.int64))
    best = b.columns(top, 0, 1)
    total = b.reduce("ReduceSum", b.op("Exp", b.op("Sub", logits, best)))
    b.give("token_ids", b.cast(ids, "int32"))
    b.give("probability", b.op("Div", b.op("Exp", b.op("Sub", top, best)), total))
    if has(node, "logits"):
        b.give("logits", logits)
