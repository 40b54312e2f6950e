"""GatedActQuant: silu or relu^2 gate, optional sub-norm, per-token int8."""

from __future__ import annotations

from bitmtp_edge.operators import Node

from .common import Body, give_quantised, has, number_tag, rms_norm


def signature(node: Node) -> str:
    a = node.attributes
    sub_norm = f"_sub_e{number_tag(float(a['epsilon']))}" if has(node, "sub_norm") else ""
    return f"gate_{a['width']}_{a['activation']}{sub_norm}"


def body(b: Body, node: Node) -> None:
    width = int(node.attributes["width"])
    gate, up = b.columns("gate_up", 0, width), b.columns("gate_up", width, 2 * width)
    if node.attributes["activation"] == "silu":
        one = b.const(1.0)
        gated = b.op("Div", gate, b.op("Add", one, b.op("Exp", b.op("Neg", gate))))
    else:
        positive = b.op("Relu", gate)
        gated = b.op("Mul", positive, positive)
    y = b.op("Mul", gated, up)
    if has(node, "sub_norm"):
        y = rms_norm(b, y, "sub_norm", width, float(node.attributes["epsilon"]))
    give_quantised(b, y, width, "act_scale")
