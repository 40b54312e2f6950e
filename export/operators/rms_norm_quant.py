"""RmsNormQuant: RMSNorm, then per-token int8."""

from __future__ import annotations

from bitmtp_edge.operators import Node

from .common import Body, give_quantised, number_tag, rms_norm


def signature(node: Node) -> str:
    a = node.attributes
    return f"norm_{a['width']}_e{number_tag(float(a['epsilon']))}"


def body(b: Body, node: Node) -> None:
    width = int(node.attributes["width"])
    y = rms_norm(b, "hidden", "weight", width, float(node.attributes["epsilon"]))
    give_quantised(b, y, width, "act_scale")
