#!/usr/bin/env bash
# Usage: tools/test_gpu.sh [--python PYTHON] [--built FOLDER] [--seed N] [sweep] [ampere] [sanitize] [pytest]
# Test the CUDA library, the TensorRT plugins and the `cuda` engine on this machine's NVIDIA GPU, for which they are compiled.
# Without a part named, all run:
#   sweep     every kernel against plain loops, on random inputs
#   ampere    the same for kernels as a GPU of compute capability 8.x (Jetson Orin's is 8.7) gets them:
#             without clusters, programmatic launches and bulk copies
#   sanitize  a short sweep under compute-sanitizer: memcheck, racecheck, initcheck
#   pytest    the tests marked `gpu`, of which none may be skipped for want of one
# --python: an interpreter that has torch, pytest and what else the tests import. Nothing is installed
# then, and the sources are used where they lie; without it, .venv is made or brought up to date.
# --built: a build folder of plugins/, perhaps of another machine. Nothing is compiled then, and
# `ampere`, which is another build, is left out.
# --seed: of the sweep's inputs. Without it they are new every time.
# Exit code: 1 where a test fails, 2 where something is missing.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/tools/gpu_build.sh"
source "$root/tools/cuda_toolkit.sh"

usage=$(sed -n 's/^# Usage/usage/p' "$0")
python='' built='' parts=()
seed=$((RANDOM << 15 | RANDOM))
while (($#)); do
  case $1 in
    --python | --built | --seed)
      (($# > 1)) || stop "$1 lacks its value; $usage"
      declare "${1#--}=$2"
      shift
      ;;
    sweep | ampere | sanitize | pytest) parts+=("$1") ;;
    *) stop "unknown argument $1; $usage" ;;
  esac
  shift
done
if ((${#parts[@]} == 0)); then
  parts=(sweep sanitize pytest)
  [[ -n $built ]] || parts+=(ampere)
fi
wanted() { [[ " ${parts[*]} " == *" $1 "* ]]; }
[[ -z $built ]] || built=$(cd "$built" 2>/dev/null && pwd) || stop "--built names no folder"
if [[ -n $built ]] && wanted ampere; then stop "ampere is a build of its own: leave out --built"; fi
if [[ -n $python ]]; then
  python=$(command -v "$python") || stop "--python names no program"
  [[ $python == /* ]] || python=$PWD/$python
fi
cd "$root"

if wanted sanitize; then
  require "$built" compute-sanitizer
else
  require "$built"
fi
if wanted pytest && [[ -n $python ]]; then
  absent=$("$python" -c '
import importlib.util, sys
print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
' click jinja2 numpy onnx onnxruntime pytest safetensors tokenizers torch)
  [[ -z $absent ]] || stop "$python lacks packages: install $absent, or leave out --python"
fi

if [[ -z $built ]]; then
  targets=()
  if wanted sweep || wanted sanitize; then targets+=(bitmtp_cuda_sweep); fi
  if wanted pytest; then
    targets+=(bitmtp_cuda bitmtp_cpu)
    if [[ -z $python ]]; then find_headers; else use_headers; fi
    if [[ -n $headers ]]; then
      options+=(-DBITMTP_TENSORRT=ON -DBITMTP_TENSORRT_INCLUDE="$headers")
      targets+=(bitmtp_tensorrt bitmtp_tensorrt_conformance)
    else
      echo "no headers of TensorRT, and nothing is installed with --python: tests of the plugins will be skipped"
    fi
  fi
  if ((${#targets[@]})); then compile "${targets[@]}"; fi
  if wanted ampere; then compile_as_ampere bitmtp_cuda_sweep; fi
  built=$root/build/gpu-tests
fi

failed=()
sweep=$built/cuda/bitmtp_cuda_sweep
if wanted sweep; then
  echo "== every kernel against plain loops; repeat with --seed $seed"
  "$sweep" --seed "$seed" || failed+=(sweep)
fi
if wanted ampere; then
  echo "== the same as on compute capability 8.0; repeat with --seed $seed"
  build/gpu-tests-ampere/cuda/bitmtp_cuda_sweep --seed "$seed" || failed+=(ampere)
fi
if wanted sanitize; then
  for tool in memcheck racecheck initcheck; do
    echo "== $tool; repeat with --seed $seed"
    compute-sanitizer --tool "$tool" --error-exitcode 1 "$sweep" --quick --seed "$seed" || failed+=("$tool")
  done
fi
if wanted pytest; then
  if [[ -z $python ]]; then
    tools/setup.sh dev,desktop
    python=$root/.venv/bin/python
  fi
  echo "== tests marked gpu"
  tree=$root/build/gpu-tests-tree
  tools/lay_out.sh "$tree"
  mkdir "$tree/bitmtp_edge/_lib"
  ln -s "$built/cpu/libbitmtp_cpu.so" "$tree/bitmtp_edge/_lib"
  status=0
  plugins=$built/tensorrt/libbitmtp_tensorrt
  if [[ -e $plugins.so ]]; then
    export BITMTP_TENSORRT_LIBRARY=$plugins.so BITMTP_TENSORRT_CONFORMANCE=${plugins}_conformance.so
  fi
  # From that folder: where Python starts it finds packages first, and the root has only half of ours.
  (cd "$tree" && PYTHONPATH=$tree BITMTP_CUDA_LIBRARY=$built/cuda/libbitmtp_cuda.so \
    "$python" -m pytest -q -m gpu --require-gpu -rs "$root/tests") || status=$?
  ((status != 4)) || exit 2 # it has said what is missing
  ((status == 0)) || failed+=(pytest)
fi
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
