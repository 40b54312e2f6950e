"""Plugins in TensorRT's order of calls, all but the launch: that needs a GPU."""

from __future__ import annotations

import pytest

from bitmtp_edge.operators import OPERATORS

from .bad_values import BAD_VALUES, LABELS
from .conformance import FIELD_TYPES, Plugin, Refused, Session
from .signatures import Field, H, M, Signature, of_operator

each_operator = pytest.mark.parametrize("op", OPERATORS)


def taken_through(session: Session, signature: Signature, m: int = M, h: int = H) -> Plugin:
    specs = signature.input_specs(m, h)
    return session.take_through(
        signature.node.op, signature.fields(), specs, len(signature.outputs)
    )


def refusal(
    session: Session,
    signature: Signature,
    *,
    fields: list[Field] | None = None,
    inputs: list[tuple[str, tuple[int, ...]]] | None = None,
    outputs: int | None = None,
) -> Refused:
    """What the library says of a node that is right but for what is given here."""
    with pytest.raises(Refused) as caught:
        session.take_through(
            signature.node.op,
            signature.fields() if fields is None else fields,
            signature.input_specs() if inputs is None else inputs,
            len(signature.outputs) if outputs is None else outputs,
        )
    return caught.value


def test_creators_are_the_operators(session: Session) -> None:
    want = {
        name: [(field, FIELD_TYPES[kind]) for field, kind in operator.attributes.items()]
        + [("input_ports", FIELD_TYPES[int]), ("output_ports", FIELD_TYPES[int])]
        for name, operator in OPERATORS.items()
    }
    assert session.creators() == want


@each_operator
@pytest.mark.parametrize("m", [1, 5, 33])
def test_every_signature(session: Session, op: str, m: int) -> None:
    h = min(m, 3)
    for signature in of_operator(op):
        signature.record(m, h)  # the engines agree on the shapes
        plugin = taken_through(session, signature, m, h)
        assert plugin.outputs == signature.output_specs(m, h), signature
        has_workspace = op in ("NestedKVAttention", "GreedyHead")
        assert (plugin.workspace_bytes > 0) == has_workspace, signature
        plugin.release()


@each_operator
def test_the_workspace_grows_with_the_window(session: Session, op: str) -> None:
    small, large = (taken_through(session, of_operator(op)[-1], m, m) for m in (1, 33))
    grows = large.workspace_bytes > small.workspace_bytes
    assert grows == (small.workspace_bytes > 0)
    for plugin in (small, large):
        plugin.release()


@each_operator
def test_every_field_is_required_and_typed(session: Session, op: str) -> None:
    signature = of_operator(op)[-1]
    fields = signature.fields()
    for i, (name, value) in enumerate(fields):
        said = refusal(session, signature, fields=fields[:i] + fields[i + 1 :])
        assert said.step == "createPlugin in the build phase"
        assert f"field {name} is missing" in said.log and signature.node.op in said.log
        wrong: int | float = 1 if isinstance(value, float | str) else 1.5
        said = refusal(session, signature, fields=[*fields[:i], (name, wrong), *fields[i + 1 :]])
        assert f"field {name} has type" in said.log
    said = refusal(session, signature, fields=[*fields, fields[0]])
    assert f"field {fields[0][0]} is there twice" in said.log
    said = refusal(session, signature, fields=[*fields, ("rowz", 3)])
    assert "field rowz is not known" in said.log


@each_operator
def test_bad_values(session: Session, op: str) -> None:
    signature = of_operator(op)[-1]
    fields = signature.fields()
    for i, (name, _) in enumerate(fields):
        for bad in BAD_VALUES[name]:
            said = refusal(session, signature, fields=[*fields[:i], (name, bad), *fields[i + 1 :]])
            assert said.step == "createPlugin in the build phase", (name, bad)
            assert LABELS.get(name, name) in said.log, (name, bad, said.log)


@each_operator
def test_ports_that_the_attributes_exclude(session: Session, op: str) -> None:
    """A port is always there, or never, or optional: which, the attributes alone say."""
    every = of_operator(op)
    known = {tuple(signature.fields()) for signature in every}
    sides = {"input_ports": OPERATORS[op].inputs, "output_ports": OPERATORS[op].outputs}
    for signature in every:
        fields = dict(signature.fields())
        for name, ports in sides.items():
            for bit, port in enumerate(ports):
                changed = {**fields, name: int(fields[name]) ^ 1 << bit}
                if tuple(changed.items()) in known:
                    continue
                said = refusal(session, signature, fields=list(changed.items()))
                assert said.step == "createPlugin in the build phase", signature
                assert name in said.log and port.name in said.log, signature


@each_operator
def test_wrong_tensors(session: Session, op: str) -> None:
    signature = of_operator(op)[-1]
    specs = signature.input_specs()
    of_any_size = ("rotary", "history", "mask_embeddings", "head_slots")  # the first extent
    for i, (port, (dtype, shape)) in enumerate(zip(signature.inputs, specs, strict=True)):
        other = "int32" if dtype == "float32" else "float32"
        said = refusal(session, signature, inputs=[*specs[:i], (other, shape), *specs[i + 1 :]])
        assert said.step == "getOutputDataTypes" and f"{port.name} is" in said.log
        for axis, extent in enumerate(shape):
            if axis == 0 and (i == 0 or port.name in of_any_size):
                continue
            wrong = (*shape[:axis], extent + 1, *shape[axis + 1 :])
            said = refusal(session, signature, inputs=[*specs[:i], (dtype, wrong), *specs[i + 1 :]])
            assert said.step == "getOutputShapes"
            assert f"{port.name} is {list(wrong)}, expected {list(shape)}" in said.log
        if port.name in of_any_size:
            wrong = (1 << 31, *shape[1:])  # the kernels count with 32 bits
            said = refusal(session, signature, inputs=[*specs[:i], (dtype, wrong), *specs[i + 1 :]])
            assert said.step == "getOutputShapes" and f"{port.name} is {list(wrong)}" in said.log
    said = refusal(session, signature, inputs=specs[:-1])
    assert said.step == "getOutputDataTypes" and "inputs" in said.log
    said = refusal(session, signature, outputs=len(signature.outputs) + 1)
    assert said.step == "getNbOutputs"


@pytest.mark.parametrize("op", ["NestedKVAttention", "GreedyHead"])
def test_nothing_is_launched_without_a_workspace(session: Session, op: str) -> None:
    signature = of_operator(op)[-1]
    plugin = taken_through(session, signature)
    session.log()
    assert plugin.enqueue([0] * len(signature.inputs), [0] * len(signature.outputs), 0, 0) != 0
    assert session.log() == f"bitmtp {op} 'conformance': has no workspace\n"
    plugin.release()
