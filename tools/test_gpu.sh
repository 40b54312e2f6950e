#!/usr/bin/env bash
# Usage: tools/test_gpu.sh [--python PYTHON] [--built FOLDER] [--seed N] [sweep] [sanitize] [pytest]
# Test the CUDA library and the `cuda` engine on this machine's NVIDIA GPU, for which both are compiled.
# Without a part named, all three run:
#   sweep     every kernel against plain loops, on random inputs
#   sanitize  a short sweep under compute-sanitizer: memcheck, racecheck, initcheck
#   pytest    the tests marked `gpu`, of which none may be skipped for want of one
# --python: an interpreter that has torch, pytest and what else the tests import. Nothing is installed
# then, and the sources are used where they lie; without it, .venv is made or brought up to date.
# --built: a build folder of plugins/, perhaps of another machine. Nothing is compiled then.
# --seed: of the sweep's inputs. Without it they are new every time.
# Exit code: 1 where a test fails, 2 where something is missing.
set -euo pipefail

stop() {
  echo "$1" >&2
  exit 2
}
python='' built='' parts=()
seed=$((RANDOM << 15 | RANDOM))
while (($#)); do
  case $1 in
    --python | --built | --seed)
      (($# > 1)) || stop "$1 lacks its value"
      declare "${1#--}=$2"
      shift
      ;;
    sweep | sanitize | pytest) parts+=("$1") ;;
    *) stop "unknown argument $1: usage: tools/test_gpu.sh [--python PYTHON] [--built FOLDER] [--seed N] [sweep] [sanitize] [pytest]" ;;
  esac
  shift
done
((${#parts[@]})) || parts=(sweep sanitize pytest)
[[ -z $built ]] || built=$(cd "$built" 2>/dev/null && pwd) || stop "--built names no folder"
if [[ -n $python ]]; then
  python=$(command -v "$python") || stop "--python names no program"
  [[ $python == /* ]] || python=$PWD/$python
fi
cd "$(dirname "$0")/.."
unset MAKEFLAGS MAKELEVEL
PATH=$PATH:/usr/local/cuda/bin # where NVIDIA's packages put what they leave off the PATH
wanted() { [[ " ${parts[*]} " == *" $1 "* ]]; }

capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) && [[ -n $capabilities ]] ||
  stop "no NVIDIA GPU: nvidia-smi is missing or shows none; install the NVIDIA driver"
missing=()
if [[ -z $built ]]; then
  command -v nvcc >/dev/null || missing+=("nvcc (CUDA toolkit)")
  command -v c++ >/dev/null || missing+=("c++ (package g++)")
  command -v cmake >/dev/null || missing+=("cmake (package cmake)")
fi
if wanted sanitize; then
  command -v compute-sanitizer >/dev/null || missing+=("compute-sanitizer (CUDA toolkit)")
fi
if wanted pytest && [[ -n $python ]]; then
  for module in click jinja2 numpy onnx onnxruntime pytest tokenizers torch; do
    "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$module') is None)" ||
      missing+=("$module (Python package, for $python)")
  done
fi
if ((${#missing[@]})); then
  printf -v list '%s, ' "${missing[@]}"
  stop "missing: ${list%, }; install them and try again"
fi

targets=()
if wanted sweep || wanted sanitize; then targets+=(bitmtp_cuda_sweep); fi
if wanted pytest; then targets+=(bitmtp_cuda bitmtp_cpu); fi
if [[ -z $built ]]; then
  built=$PWD/build/gpu-tests
  architectures=$(echo "$capabilities" | tr -d . | sort -u | sed 's/$/-real/' | paste -sd ';')
  echo "== compiling for $architectures"
  # Line numbers for the sanitizer's reports; the code is the same.
  cmake -S plugins -B "$built" -DBITMTP_CUDA=ON -DBITMTP_BUILD_SWEEP=ON -DCMAKE_CUDA_FLAGS=-lineinfo \
    -DCMAKE_CUDA_ARCHITECTURES="$architectures" >/dev/null
  cmake --build "$built" --target "${targets[@]}" --parallel "$(nproc)"
fi

failed=()
sweep=$built/cuda/bitmtp_cuda_sweep
if wanted sweep; then
  echo "== every kernel against plain loops; repeat with --seed $seed"
  "$sweep" --seed "$seed" || failed+=(sweep)
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
    python=$PWD/.venv/bin/python
  fi
  echo "== tests marked gpu"
  tests=$PWD/tests tree=$PWD/build/gpu-tests-tree
  tools/lay_out.sh "$tree"
  mkdir "$tree/bitmtp_edge/_lib"
  ln -s "$built/cpu/libbitmtp_cpu.so" "$tree/bitmtp_edge/_lib"
  status=0
  # In that folder, since Python looks for packages where it starts, which is before PYTHONPATH.
  (cd "$tree" && PYTHONPATH=$tree BITMTP_CUDA_LIBRARY=$built/cuda/libbitmtp_cuda.so \
    "$python" -m pytest -q -m gpu --require-gpu -rs "$tests") || status=$?
  ((status != 4)) || exit 2 # it has said what is missing
  ((status == 0)) || failed+=(pytest)
fi
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
