"""TensorRT's own plugin registry, of its lean runtime, takes the library and makes every plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bitmtp_edge.operators import OPERATORS

from .signatures import Field, of_operator

NAMES = {int: "INT32", float: "FLOAT32", str: "CHAR"}
each_operator = pytest.mark.parametrize("op", OPERATORS)


@pytest.fixture(scope="module")
def trt(plugin_library: str) -> Any:
    """The lean runtime's Python package. Its absence is a failure where the library is built."""
    import tensorrt_lean_bindings

    return tensorrt_lean_bindings


@pytest.fixture(scope="module")
def registry(trt: Any, plugin_library: str) -> Iterator[Any]:
    """TensorRT's registry, with our library loaded."""
    registry = trt.get_plugin_registry()
    handle = registry.load_library(plugin_library)
    assert handle is not None
    yield registry
    registry.deregister_library(handle)


def create(trt: Any, registry: Any, op: str, fields: list[Field], phase: str) -> Any:
    creator = registry.get_creator(op, "1", "")
    assert creator is not None
    made = []
    for name, value in fields:
        kind = getattr(trt.PluginFieldType, NAMES[type(value)])
        if isinstance(value, str):
            data = np.frombuffer(value.encode(), np.int8)
        else:
            data = np.array([value], np.float32 if isinstance(value, float) else np.int32)
        made.append(trt.PluginField(name, data, kind))
    collection = trt.PluginFieldCollection(made)
    return creator.create_plugin("node", collection, getattr(trt.TensorRTPhase, phase))


def test_seven_creators(trt: Any, registry: Any) -> None:
    found = {
        creator.name: [(field.name, field.type) for field in creator.field_names]
        for creator in registry.all_creators
        if creator.name in OPERATORS
    }
    masks = {"input_ports": int, "output_ports": int}
    want = {
        name: [
            (field, getattr(trt.PluginFieldType, NAMES[kind]))
            for field, kind in {**operator.attributes, **masks}.items()
        ]
        for name, operator in OPERATORS.items()
    }
    assert found == want
    for name in OPERATORS:
        creator = registry.get_creator(name, "1", "")
        assert (creator.plugin_version, creator.plugin_namespace) == ("1", "")
        assert creator.interface_info.kind == "PLUGIN CREATOR_V3ONE"


@each_operator
@pytest.mark.parametrize("phase", ["BUILD", "RUNTIME"])
def test_every_plugin_is_made(trt: Any, registry: Any, op: str, phase: str) -> None:
    for signature in of_operator(op):
        plugin = create(trt, registry, op, signature.fields(), phase)
        assert plugin is not None, signature
        assert plugin.interface_info.kind == "PLUGIN"


@each_operator
def test_bad_fields_make_none(trt: Any, registry: Any, op: str) -> None:
    fields = of_operator(op)[-1].fields()
    for i, (_, value) in enumerate(fields):
        name = fields[i][0]
        wrong = 1 if isinstance(value, float | str) else 1.5
        for changed in (
            fields[:i] + fields[i + 1 :],
            [*fields[:i], (name, wrong), *fields[i + 1 :]],
            [*fields, (f"{name}_", value)],
        ):
            assert create(trt, registry, op, changed, "BUILD") is None, (name, changed)
