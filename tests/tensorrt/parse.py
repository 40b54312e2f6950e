"""python parse.py LIBRARY MODEL...: parses ONNX models, one after the other, by the parser of
TensorRT-RTX, with the plugins of LIBRARY in its registry.

What the parser says goes to standard output. TensorRT-RTX has no plugin layers: where a plugin was
made, it ends this process right afterwards.
"""

from __future__ import annotations

import sys
from typing import Any


def main(library: str, *models: str) -> None:
    import tensorrt_rtx_bindings as trt

    class Printed(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, line: str) -> None:
            print(line, flush=True)

    logger = Printed()
    assert trt.get_plugin_registry().load_library(library) is not None
    builder = trt.Builder(logger)
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    for model in models:
        network = builder.create_network(flags)
        parser = trt.OnnxParser(network, logger)
        with open(model, "rb") as file:
            print(f"{model} parsed: {parser.parse(file.read())}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
