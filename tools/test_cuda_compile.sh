#!/usr/bin/env bash
# Usage: tools/test_cuda_compile.sh
# Compile the CUDA library and its sweep for every architecture that they support. Needs no GPU: nothing
# runs. An nvcc on the PATH is used; where there is none, NVIDIA's wheels give one, in build/nvcc.
set -euo pipefail
cd "$(dirname "$0")/.."
unset MAKEFLAGS MAKELEVEL

nvcc=$(command -v nvcc || true)
if [[ -z $nvcc ]]; then
  venv=build/nvcc
  if [[ ! -e $venv/ready ]]; then
    if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
      echo "missing tools; run: sudo apt-get install -y python3-venv" >&2
      exit 2
    fi
    echo "installing nvcc into $venv"
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check nvidia-cuda-{nvcc,crt,runtime,cccl}==13.0.* nvidia-nvvm==13.0.*
    touch "$venv/ready"
  fi
  toolkit=$(echo "$PWD/$venv"/lib/python3*/site-packages/nvidia/cu13)
  [[ -e $toolkit/lib64 ]] || ln -s lib "$toolkit/lib64" # where nvcc looks for the runtime
  nvcc=$toolkit/bin/nvcc
fi

echo "== CUDA, every architecture, compiled only"
cmake -S plugins -B build/cuda-compile -DBITMTP_CUDA=ON -DBITMTP_BUILD_SWEEP=ON -DCMAKE_CUDA_COMPILER="$nvcc" >/dev/null
cmake --build build/cuda-compile --target bitmtp_cuda bitmtp_cuda_sweep --parallel "$(nproc)"
