#!/usr/bin/env bash
# Usage: tools/test_cuda_compile.sh
# Compile the CUDA library, the TensorRT plugins and the sweep for every architecture that they support.
# Needs no GPU: nothing runs. An nvcc on the PATH is used; where there is none, NVIDIA's wheels give one,
# in build/nvcc.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/cuda_toolkit.sh
find_nvcc
find_headers

echo "== CUDA and TensorRT, every architecture, compiled only"
cmake -S plugins -B build/cuda-compile -DBITMTP_CUDA=ON -DBITMTP_TENSORRT=ON -DBITMTP_TENSORRT_INCLUDE="$headers" \
  -DBITMTP_BUILD_SWEEP=ON -DCMAKE_CUDA_COMPILER="$nvcc" >/dev/null
cmake --build build/cuda-compile --parallel "$(nproc)" \
  --target bitmtp_cuda bitmtp_cuda_sweep bitmtp_tensorrt bitmtp_tensorrt_conformance
