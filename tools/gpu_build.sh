# Sourced, in the repository's root, by tools that need an NVIDIA GPU: what is missing for them, and the build for this machine's GPU.
# shellcheck shell=bash
options=()
unset MAKEFLAGS MAKELEVEL # else the builds report every folder they enter
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin # where NVIDIA's packages put what they leave off the PATH

stop() { # LINE
  echo "$1" >&2
  exit 2
}

require() { # BUILT [PROGRAM]: a GPU, the program, and where BUILT is empty what compiles
  capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) && [[ -n $capabilities ]] ||
    stop "no NVIDIA GPU: nvidia-smi is missing or shows none; install the NVIDIA driver"
  local programs=() missing=() program list
  [[ -n $1 ]] || programs=(nvcc c++ cmake)
  for program in "${programs[@]}" "${@:2}"; do
    command -v "$program" >/dev/null && continue
    case $program in
      nvcc | ncu | compute-sanitizer) missing+=("$program (of the CUDA toolkit)") ;;
      c++) missing+=("c++ (package g++)") ;;
      *) missing+=("$program") ;;
    esac
  done
  ((${#missing[@]} == 0)) && return
  printf -v list '%s, ' "${missing[@]}"
  stop "missing: ${list%, }; install it and try again"
}

compile() { # TARGET...: into build/gpu-tests, with the CMake options in `options`
  local architectures
  architectures=$(architectures_of '%s-real' ';')
  echo "== compiling for $architectures"
  # Line numbers for reports of the sanitizer and the profiler; the code is the same.
  build build/gpu-tests "$architectures" -lineinfo "$@"
}

compile_as_ampere() { # TARGET...: into build/gpu-tests-ampere, what a GPU of compute capability 8.x would run
  echo "== compiling for 8.0, as code that this GPU runs"
  build build/gpu-tests-ampere OFF "$(architectures_of '-gencode=arch=compute_80,code=sm_%s' ' ')" "$@"
}

architectures_of() { # FORMAT SEPARATOR: of this machine's GPUs
  # shellcheck disable=SC2059
  echo "$capabilities" | tr -d . | sort -u | while read -r each; do printf -- "$1\n" "$each"; done | paste -sd "$2"
}

build() { # FOLDER ARCHITECTURES FLAGS TARGET...
  cmake -S plugins -B "$1" -DBITMTP_CUDA=ON -DBITMTP_BUILD_SWEEP=ON -DCMAKE_CUDA_ARCHITECTURES="$2" \
    -DCMAKE_CUDA_FLAGS="$3" "${options[@]}" >/dev/null
  cmake --build "$1" --target "${@:4}" --parallel "$(nproc)"
}
