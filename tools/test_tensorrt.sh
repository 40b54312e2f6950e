#!/usr/bin/env bash
# Usage: tools/test_tensorrt.sh
# Test the plugin library that tools/test_cuda_compile.sh compiles, without a GPU: in the hands of what
# stands in for TensorRT, of TensorRT's lean runtime, and of the ONNX parser of TensorRT-RTX; and look at
# its machine code. Their packages go into build/tensorrt.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
source tools/cuda_toolkit.sh
fresh_venv build/tensorrt click gguf jinja2 numpy onnx onnxruntime pytest safetensors tokenizers \
  tensorrt-{lean-cu13-bindings,lean-cu13-libs}==11.4.0.106 \
  tensorrt-{rtx-cu13-bindings,rtx-cu13-libs}==1.7.1.116 \
  nvidia-cuda-{cuobjdump,nvdisasm}==13.2.*

echo "== TensorRT plugins: TensorRT's registry, its ONNX parser, its order of calls; machine code"
tree=$root/build/tensorrt-tree built=$root/build/cuda-compile/tensorrt
tools/lay_out.sh "$tree"
cuobjdump=$(echo "$root"/build/tensorrt/lib/python3*/site-packages/nvidia/*/bin/cuobjdump)
# From that folder: where Python starts it finds packages first, and the root has only half of ours.
cd "$tree"
PYTHONPATH=$tree PATH=$(dirname "$cuobjdump"):$PATH \
  BITMTP_TENSORRT_LIBRARY=$built/libbitmtp_tensorrt.so \
  BITMTP_TENSORRT_CONFORMANCE=$built/libbitmtp_tensorrt_conformance.so \
  "$root/build/tensorrt/bin/python" -m pytest -q -rs -p no:cacheprovider -m "not gpu" "$root/tests/tensorrt"
