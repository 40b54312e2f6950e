"""A board has only the four runtime dependencies: nothing else may load with the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "gguf",
    "jtop",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "pycuda",
    "safetensors",
    "tensorrt",
    "torch",
)


@pytest.mark.parametrize(
    "statement",
    [
        "import bitmtp_edge",
        "import bitmtp_edge.cli",
        "from bitmtp_edge.cli import main; main(['--help'])",
        "from bitmtp_edge.cli import cli; [cli.get_command(None, v) for v in cli.list_commands(0)]",
    ],
)
def test_nothing_heavy_is_imported(statement: str) -> None:
    probe = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == ""
