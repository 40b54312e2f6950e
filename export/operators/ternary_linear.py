"""TernaryLinear: W2A8, optionally plus a residual."""

from __future__ import annotations

from bitmtp_edge.operators import Node

from .common import Body, group_tag, has, linear


def signature(node: Node) -> str:
    a = node.attributes
    residual = "_res" if has(node, "residual") else ""
    return f"ternary_{a['rows']}x{a['width']}_{group_tag(a)}{residual}"


def body(b: Body, node: Node) -> None:
    y = linear(b, "codes", "act_scale", "packed", "", "ternary", node.attributes)
    b.give("out", b.op("Add", y, "residual") if has(node, "residual") else y)
