"""Export streams: its memory is that of a block of rows, not that of the model."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from bitmtp_edge.export.pipeline import export_bundle

from .tiny_models import Tiny, tiny_ternary, write_folder

# VmHWM and not ru_maxrss, which a child inherits from the process that made it.
MEASURE = """
import re, sys
from bitmtp_edge.cli import main
code = main(["export", sys.argv[1], "-o", sys.argv[2]])
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
sys.exit(code)
"""


def test_a_real_model_fits_a_small_machine(smollm2_gguf: Path, tmp_path: Path) -> None:
    # Another folder, so that an installed package is measured and not the sources in this one.
    command = [sys.executable, "-c", MEASURE, str(smollm2_gguf), str(tmp_path / "b")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert int(done.stdout.split()[-1]) < 350 << 10, "peak resident KiB"


@pytest.mark.parametrize("write", [write_folder, tiny_ternary])
def test_twice_the_layers_take_no_more_memory(write: Callable[..., Tiny], tmp_path: Path) -> None:
    peaks = []
    for layers in (4, 8):
        source = write(
            tmp_path / f"m{layers}",
            num_hidden_layers=layers,
            hidden_size=512,
            intermediate_size=1024,
        )
        path = source.path
        del source
        tracemalloc.start()
        export_bundle(path, tmp_path / f"b{layers}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Nodes take some; the weights of four layers, kept at two bits each, would take a layer's more.
    layer = 512 * (256 + 2 * 128 + 256 + 3 * 1024)
    assert peaks[1] - peaks[0] < 1.5 * layer, peaks
