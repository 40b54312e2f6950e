#!/usr/bin/env bash
# Usage: tools/setup.sh EXTRA [PACKAGE...]
# Make .venv and install this checkout into it, editable, with one extra and, without their
# dependencies, the named packages. PYTHON chooses the interpreter of a new .venv. TORCH names a
# build of PyTorch: where there is one, by then or in the package index, the extra `train` comes too.
# The editable install runs every time: it is what compiles edits to the C++ sources.
set -euo pipefail
cd "$(dirname "$0")/.."
extra=$1
shift
log=build/setup.log

# Debian splits ensurepip out of python3; without it a venv has no pip.
usable() {
  "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3.10 python3}; do
    if usable "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
}

missing=()
command -v c++ >/dev/null || missing+=(g++)
python=$(find_python)
if [[ -z $python && ! -x .venv/bin/python ]]; then
  shown=${PYTHON:-python3}
  # A version manager leaves commands that exist and do not run: those count as missing.
  if version=$("$shown" -c 'import platform; print(platform.python_version())' 2>/dev/null) && [[ -n $version ]]; then
    if ! "$shown" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
      echo "bitmtp-edge needs Python 3.10 or newer; $shown is $version. Name another: make PYTHON=python3.12" >&2
      exit 2
    fi
  elif [[ -n ${PYTHON:-} ]]; then
    echo "PYTHON=$PYTHON is no Python that runs here. Name another: make PYTHON=python3.12" >&2
    exit 2
  fi
  missing+=(python3 python3-venv)
fi
if ((${#missing[@]})); then
  echo "missing tools; run: sudo apt-get install -y ${missing[*]}" >&2
  exit 2
fi

mkdir -p build
quietly() {
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    echo "failed: $*" >&2
    exit 1
  fi
}

export PIP_DISABLE_PIP_VERSION_CHECK=1
if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
  echo "creating .venv with $("$python" -V)"
  quietly "$python" -m venv --clear .venv
fi
if [[ -n ${TORCH:-} ]]; then
  # Never another build in its place: what indexes offer by default is for GPUs and some gigabytes.
  if .venv/bin/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' ||
    .venv/bin/python -m pip install "$TORCH" >"$log" 2>&1; then
    extra+=,train
  else
    echo "no $TORCH in this package index: tests of training will be skipped"
  fi
fi
echo "installing bitmtp-edge[$extra] into .venv"
quietly .venv/bin/python -m pip install -e ".[$extra]"
for package in "$@"; do
  quietly .venv/bin/python -m pip install --no-deps "$package"
done
