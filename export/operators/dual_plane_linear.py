"""DualPlaneLinear: W4A8, or W8A8 where the refinement is present; optionally plus a residual."""

from __future__ import annotations

from bitmtp_edge.operators import Node

from .common import Body, group_tag, has, linear


def signature(node: Node) -> str:
    a = node.attributes
    planes = "w8" if has(node, "refinement") else "w4"
    residual = "_res" if has(node, "residual") else ""
    return f"dual_{a['rows']}x{a['width']}_{group_tag(a)}_{planes}{residual}"


def body(b: Body, node: Node) -> None:
    refinement = "refinement" if has(node, "refinement") else ""
    y = linear(b, "codes", "act_scale", "base", refinement, "dual", node.attributes)
    b.give("out", b.op("Add", y, "residual") if has(node, "residual") else y)
