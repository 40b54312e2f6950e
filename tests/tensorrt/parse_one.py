"""python parse_one.py LIBRARY MODEL: parses MODEL by TensorRT-RTX's ONNX parser, with the plugins of
LIBRARY in its registry.

All that the parser has to say goes to standard output. TensorRT-RTX has no plugin layers: where a
plugin was made, it ends this process right afterwards.
"""

from __future__ import annotations

import sys
from typing import Any


def main(library: str, model: str) -> None:
    import tensorrt_rtx_bindings as trt

    class Printed(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, line: str) -> None:
            print(line, flush=True)

    logger = Printed()
    assert trt.get_plugin_registry().load_library(library) is not None
    builder = trt.Builder(logger)
    flag = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flag)
    parser = trt.OnnxParser(network, logger)
    with open(model, "rb") as file:
        parsed = parser.parse(file.read())
    print("parsed:", parsed, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
