#!/usr/bin/env bash
# Usage: tools/test_cross.sh
# Check the kernels where this machine's own test run cannot: natively under the address and
# undefined-behaviour sanitizers, and for 64-bit ARM under qemu's user mode (correctness only).
set -euo pipefail
cd "$(dirname "$0")/.."
unset MAKEFLAGS MAKELEVEL # else the builds below report every folder they enter

missing=()
command -v c++ >/dev/null || missing+=(g++)
command -v cmake >/dev/null || missing+=(cmake)
command -v make >/dev/null || missing+=(make)
command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static)
if ((${#missing[@]})); then
  echo "missing tools; run: sudo apt-get install -y ${missing[*]}" >&2
  exit 2
fi

build_sweep() { # FOLDER CMAKE-OPTION...
  local folder=$1
  shift
  cmake -S plugins -B "$folder" -DCMAKE_BUILD_TYPE=Release -DBITMTP_BUILD_SWEEP=ON "$@" >/dev/null
  cmake --build "$folder" --target bitmtp_kernel_sweep --parallel "$(nproc)"
  sweep=$(find "$folder" -name bitmtp_kernel_sweep -type f)
}

echo "== sanitizers, this machine's processor"
build_sweep build/sweep-sanitize -DBITMTP_SANITIZE=ON
"$sweep"

build_sweep build/sweep-aarch64 -DCMAKE_TOOLCHAIN_FILE="$PWD/tools/aarch64-linux-gnu.cmake" \
  -DCMAKE_EXE_LINKER_FLAGS=-static
# cortex-a76 has the extensions of the Cortex-A78AE in an Orin (dot product, fp16, no int8 matrix
# multiply) and gets every case; max has all that qemu knows; cortex-a57 has none, so that the
# fallback is chosen too.
emulate() { # PROCESSOR SWEEP-OPTION...
  echo "== aarch64 under qemu, $1"
  qemu-aarch64-static -cpu "$1" "$sweep" "${@:2}"
}
emulate cortex-a76
emulate max --quick
emulate cortex-a57 --quick
