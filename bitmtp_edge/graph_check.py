"""What the graphs of a bundle must keep to before an engine plans memory by them.

Engines compute sizes and addresses from attributes, so what passes here fits C's int32, names every
tensor once, and agrees with the model's facts. Shapes of single tensors are the engine's to check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .errors import UserError
from .operators import OPERATORS, STEP_INPUTS, STEP_OUTPUTS, Node, Operator, kv_names

if TYPE_CHECKING:
    from .bundle import Manifest, ModelFacts

_CHOICES: dict[str, tuple[int | str, ...]] = {
    "kind": ("fp16", "int8", "ternary", "dual"),
    "kv": ("nested", "fp16"),
    "activation": ("silu", "relu2"),
    "group_size": (0, 64, 128),
}
_WEIGHTS = {"DualPlaneLinear": "nested", "TernaryLinear": "ternary"}  # ModelFacts.weights
_TABLES = ("TokenEmbedding", "GreedyHead")
_MOST = 2**31 - 1
_HISTORY = ("history", "history_refinement", "history_scale")
_ROWS = ("new_rows", "new_refinement", "new_scale")


def check_nodes(
    nodes: Sequence[Node], model: ModelFacts, tensors: Mapping[str, Sequence[int]], where: str
) -> None:
    """Checks one graph: every node is known and complete, reads only what exists before it, and
    writes what nobody wrote.

    tensors: shape of every weight by name. where: what an error names as the graph's place. Raises
    UserError.
    """
    known = {*tensors, *STEP_INPUTS}
    made: set[str] = set()
    layer = 0
    for node in nodes:
        at = f"{where}: node {node.name!r}"
        operator = OPERATORS.get(node.op)
        if operator is None:
            raise UserError(
                f"{at}: unknown operator {node.op!r}: export with this SDK, or update it"
            )
        _check_ports(node, operator, at)
        _check_attributes(node, operator, model, at)
        if node.op == "NestedKVAttention":
            _check_attention(node, layer, model, tensors, at)
            known.update(filter(None, map(node.input, _HISTORY)))
            layer += 1
        for name in filter(None, node.inputs):
            if name not in known:
                raise UserError(
                    f"{at}: input {name!r} is neither a weight nor made by an earlier node"
                )
        for port, name in zip(operator.outputs, node.outputs, strict=False):
            if not name:
                continue
            if name in known or name in made:
                raise UserError(f"{at}: output {name!r} exists already")
            made.add(name)
            if name not in STEP_OUTPUTS:
                known.add(name)
            elif node.op != "GreedyHead" or port.name != name.removeprefix("next_"):
                raise UserError(f"{at}: output {name!r} is a GreedyHead's to make")
    for name in STEP_OUTPUTS:
        if name not in made:
            raise UserError(f"{where}: no node makes the output {name!r}")
    if layer != model.num_layers:
        raise UserError(f"{where}: {layer} attention nodes, model.num_layers is {model.num_layers}")


def check_facts(graphs: Mapping[str, Sequence[Node]], manifest: Manifest, where: str) -> None:
    """Checks what ``manifest`` says of its graphs as a whole. graphs: the nodes of each role, that
    :func:`check_nodes` has passed. where: what an error names. Raises UserError."""
    model, nodes = manifest.model, [node for role in graphs.values() for node in role]
    operators = sorted({node.op for node in nodes})
    weights = [_WEIGHTS[op] for op in operators if op in _WEIGHTS]
    tables = {node.input("table") for node in nodes if node.op in _TABLES}
    for name, told, found in (
        ("operators", list(manifest.operators), operators),
        ("model.weights", model.weights, " and ".join(weights)),
        ("model.tied_embeddings", model.tied_embeddings, len(tables) == 1),
        ("model.draft_rows_final", model.draft_rows_final, graphs["draft"] == graphs["verify"]),
    ):
        if told != found:
            raise UserError(
                f"{where}: {name} is {told!r}, but its graphs say {found!r}: export again"
            )


def _check_ports(node: Node, operator: Operator, at: str) -> None:
    for ports, names, kind in (
        (operator.inputs, node.inputs, "input"),
        (operator.outputs, node.outputs, "output"),
    ):
        if len(names) > len(ports):
            raise UserError(f"{at}: {len(names)} {kind}s, {node.op} takes at most {len(ports)}")
        for i, port in enumerate(ports):
            if not port.optional and (i >= len(names) or not names[i]):
                raise UserError(f"{at}: {kind} {port.name!r} is missing")


def _check_attributes(node: Node, operator: Operator, model: ModelFacts, at: str) -> None:
    unknown = sorted(set(node.attributes) - set(operator.attributes))
    if unknown:
        raise UserError(f"{at}: unknown attribute {unknown[0]!r}: update this SDK")
    for name, kind in operator.attributes.items():
        value = node.attributes.get(name)
        here = f"{at}: attribute {name!r} is {value!r}, expected"
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise UserError(f"{here} {kind.__name__}")
        if name in _CHOICES:
            if value not in _CHOICES[name]:
                raise UserError(f"{here} one of {', '.join(map(str, _CHOICES[name]))}")
        elif isinstance(value, int) and kind is int and not 1 <= value <= _MOST:
            raise UserError(f"{here} 1 .. {_MOST}")
        elif isinstance(value, (int, float)) and not abs(value) <= _MOST:  # a NaN is not
            raise UserError(f"{here} a finite number")
    for name, fact in _facts(node.op, model).items():
        if node.attributes[name] != fact:
            raise UserError(
                f"{at}: attribute {name!r} is {node.attributes[name]!r}, the model says {fact!r}"
            )


def _facts(op: str, model: ModelFacts) -> dict[str, int | str]:
    """Attributes that repeat a fact of the model."""
    if op in ("TokenEmbedding", "GreedyHead"):
        return {"rows": model.vocab_size, "width": model.hidden_size}
    if op == "NestedKVAttention":
        return {
            "num_heads": model.num_heads,
            "num_kv_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "kv": model.kv,
        }
    if op == "GatedActQuant":
        return {"width": model.intermediate_size}
    return {}


def _check_attention(
    node: Node, layer: int, model: ModelFacts, tensors: Mapping[str, Sequence[int]], at: str
) -> None:
    if model.num_heads % model.num_kv_heads or model.head_dim % 8:
        raise UserError(
            f"{at}: {model.num_heads} heads over {model.num_kv_heads} KV heads of "
            f"{model.head_dim}: expected a whole number of each, and a multiple of 8"
        )
    planes = kv_names(layer)
    stored = 1 if model.kv == "fp16" else 3
    for ports, name_of, kind in ((_HISTORY, node.input, "input"), (_ROWS, node.output, "output")):
        for i, port in enumerate(ports):
            expected = planes[port] if i < stored else ""
            if name_of(port) != expected:
                raise UserError(
                    f"{at}: {kind} {port!r} is {name_of(port)!r}, expected {expected!r} of layer "
                    f"{layer} with {model.kv} KV"
                )
    rotary = tensors.get(node.input("rotary"), ())
    if len(rotary) != 2 or rotary[0] < model.context:
        raise UserError(
            f"{at}: {node.input('rotary')!r} is no rotary table of {model.context} positions"
        )
