#!/usr/bin/env bash
# Usage: tools/profile_gpu.sh [--built FOLDER] [--bench CASE | --bench-attention CASE]
# Profile a case of the CUDA bench with Nsight Compute: which kernels take its time, and of the two
# hottest ones what they wait for. CASE is text in one line of the bench, M=1 with a space behind it,
# say; without it, it is an AR step at the sizes of Bonsai-1.7B, attention apart.
# --built: a build folder of plugins/, perhaps of another machine. Nothing is compiled then.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/tools/gpu_build.sh"

built='' bench=(--bench 'step but attention, Bonsai-1.7B M=1 ')
while (($#)); do
  (($# > 1)) || stop "$1 lacks its value; $(sed -n 's/^# Usage/usage/p' "$0")"
  case $1 in
    --built) built=$(cd "$2" 2>/dev/null && pwd) || stop "--built names no folder" ;;
    --bench | --bench-attention) bench=("$1" "$2") ;;
    *) stop "unknown argument $1; $(sed -n 's/^# Usage/usage/p' "$0")" ;;
  esac
  shift 2
done
cd "$root"
require "$built" ncu python3
if [[ -z $built ]]; then
  compile bitmtp_cuda_sweep
  built=$root/build/gpu-tests
fi
exec python3 tools/profile_summary.py "$built/cuda/bitmtp_cuda_sweep" "${bench[@]}"
