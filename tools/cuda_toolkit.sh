# Sourced, in the repository's root, by tools that compile for NVIDIA GPUs without needing one: sets `nvcc` and `headers`, TensorRT's.
# What this machine lacks comes from NVIDIA's wheels and others', into folders of build/.
# shellcheck shell=bash disable=SC2034
unset MAKEFLAGS MAKELEVEL

fresh_venv() { # FOLDER PIP-ARGUMENT...: once; PYTHON of it is FOLDER/bin/python
  local venv=$1
  shift
  [[ $(cat "$venv/ready" 2>/dev/null) == "$*" ]] && return
  if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    echo "missing tools; run: sudo apt-get install -y python3-venv" >&2
    exit 2
  fi
  echo "installing into $venv"
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check "$@"
  echo "$*" >"$venv/ready"
}

find_nvcc() {
  nvcc=$(command -v nvcc) && return
  local venv=build/nvcc toolkit
  fresh_venv "$venv" nvidia-cuda-{nvcc,crt,runtime,cccl}==13.0.* nvidia-nvvm==13.0.*
  toolkit=$(echo "$PWD/$venv"/lib/python3*/site-packages/nvidia/cu13)
  [[ -e $toolkit/lib64 ]] || ln -s lib "$toolkit/lib64" # where nvcc looks for the runtime
  nvcc=$toolkit/bin/nvcc
}

# Those that are here already, or none.
use_headers() {
  for headers in "$PWD"/build/tensorrt-headers/lib/python3*/site-packages/kernel_lens/include/tensorrt \
    /usr/include/{aarch64,x86_64}-linux-gnu; do
    [[ ! -e $headers/NvInferRuntime.h ]] || return 0
  done
  headers=
}

find_headers() {
  # A package that happens to carry those of TensorRT 10.14; nothing of it is run.
  fresh_venv build/tensorrt-headers --no-deps kernel-lens==2.0.1
  use_headers
}
