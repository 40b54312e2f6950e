"""TensorRT's own Python packages against what ``build`` and the engine call of them: the lean
runtime of TensorRT 11, and the parser and builder of TensorRT-RTX, which build plain networks here.
"""

from __future__ import annotations

import subprocess
import sys
from enum import EnumMeta
from pathlib import Path

import pytest

from ..fakes import fake_tensorrt as fake

LEAN, RTX = "tensorrt_lean_bindings", "tensorrt_rtx_bindings"
NAMES = [
    (LEAN, fake.Runtime, "Runtime"),
    (LEAN, fake.Engine, "ICudaEngine"),
    (LEAN, fake.Context, "IExecutionContext"),
    (LEAN, fake.PluginRegistry, "IPluginRegistry"),
    (LEAN, fake.ILogger, "ILogger"),
    (LEAN, fake.DataType, "DataType"),
    (LEAN, fake.TensorIOMode, "TensorIOMode"),
    (LEAN, fake.Strategy, "ExecutionContextAllocationStrategy"),
    (RTX, fake.Builder, "Builder"),
    (RTX, fake.BuilderConfig, "IBuilderConfig"),
    (RTX, fake.Network, "INetworkDefinition"),
    (RTX, fake.Tensor, "ITensor"),
    (RTX, fake.OnnxParser, "OnnxParser"),
    (RTX, fake.ParserError, "ParserError"),
    (RTX, fake.HostMemory, "IHostMemory"),
    (RTX, fake.MemoryPoolType, "MemoryPoolType"),
    (RTX, fake._NewNetworkFlag, "NetworkDefinitionCreationFlag"),
    (RTX, fake.TensorFormat, "TensorFormat"),
]


@pytest.mark.parametrize(("package", "ours", "theirs"), NAMES, ids=[name for *_, name in NAMES])
def test_the_stand_in_has_no_name_of_its_own(package: str, ours: type, theirs: str) -> None:
    real = pytest.importorskip(package, reason=f"{package} is not installed")
    names = set(ours.__members__) if isinstance(ours, EnumMeta) else set(vars(ours))
    public = {name for name in names if not name.startswith("_")} - {"settable"}
    assert public and public <= set(dir(getattr(real, theirs)))


BUILD = """
import sys
import tensorrt_rtx_bindings as tensorrt
from onnx import TensorProto, helper

tensorrt.__version__ = "11.4.0"  # what RTX's parser and builder are like, whatever its own number
sys.modules["tensorrt"] = tensorrt
from bitmtp_edge.building.tensorrt_builder import build_plan
from bitmtp_edge.engines.tensorrt_tensors import EngineTensors
from bitmtp_edge.errors import UserError

KINDS = {"int32": TensorProto.INT32, "float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}

def network(op):
    def value(name, kind):
        return helper.make_tensor_value_info(name, kind, [4, 8])

    graph = helper.make_graph(
        [helper.make_node(op, [k, k], [f"layers.0.{k}"], name=f"sum of {k}") for k in KINDS],
        "sums",
        [value(name, kind) for name, kind in KINDS.items()],
        [value(f"layers.0.{name}", kind) for name, kind in KINDS.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("bitmtp", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()

ins = {name: (name, (4, 8)) for name in KINDS}
outs = {f"layers.0.{name}": (name, (4, 8)) for name in KINDS}
plan = build_plan(network("Add"), EngineTensors(ins, {}, outs), "three sums")
print(type(plan).__name__, len(plan) > 1000)
for network_bytes, tensors in (
    (network("NoSuchOperator"), EngineTensors(ins, {}, outs)),
    (b"no model", EngineTensors(ins, {}, outs)),
    (network("Add"), EngineTensors({**ins, "int32": ("int32", (4, 9))}, {}, outs)),
    (network("Add"), EngineTensors(ins, {"logits": ("float32", (1, 1))}, outs)),
):
    try:
        build_plan(network_bytes, tensors, "it")
    except UserError as error:
        print(error)
"""


def test_the_builder_takes_our_calls(tmp_path: Path) -> None:
    """All that ``build`` asks of parser and builder, on a network of all our dtypes without
    plugins, for which RTX has no layer."""
    pytest.importorskip(RTX, reason=f"{RTX} is not installed")
    script = tmp_path / "build.py"
    script.write_text(BUILD)
    done = subprocess.run(
        [sys.executable, "-P", str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    built, unknown, garbage, shape, missing = done.stdout.splitlines()
    assert built == "bytes True"
    assert unknown.startswith("TensorRT does not parse it: sum of int32: ")
    assert "Plugin not found" in unknown
    assert garbage.startswith("TensorRT does not parse it: the model: ")
    assert (
        shape == "TensorRT reads it otherwise: input 'int32' is int32[4, 8], expected int32[4, 9]"
    )
    assert missing.endswith("output 'logits' is missing, expected float32[1, 1]")


REGISTER = """
import sys
import tensorrt_lean_bindings

sys.modules["tensorrt"] = tensorrt_lean_bindings
from bitmtp_edge.engines.tensorrt_api import register_plugins
from bitmtp_edge.engines.tensorrt_library import PluginLibrary
from bitmtp_edge.errors import UserError

library = PluginLibrary()
print(library.path, len(library.sha256), library.architectures)
register_plugins(library)
register_plugins(library)
library.path = "libm.so.6"
try:
    register_plugins(library)
except UserError as error:
    print(error)
"""


def test_the_registry_takes_our_calls(plugin_library: str, tmp_path: Path) -> None:
    """With the library itself, of which it finds all seven creators."""
    pytest.importorskip(LEAN, reason=f"{LEAN} is not installed")
    script = tmp_path / "register.py"
    script.write_text(REGISTER)
    done = subprocess.run(
        [sys.executable, "-P", str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    facts, refused = done.stdout.splitlines()
    assert facts.startswith(f"{plugin_library} 64 ")
    assert refused.startswith("TensorRT does not load libm.so.6: ")
