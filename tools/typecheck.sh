#!/usr/bin/env bash
# Usage: tools/typecheck.sh MYPY
# Type-check the package as it is installed, since mypy needs the one tree that it forms then.
set -euo pipefail
cd "$(dirname "$0")/.."
mypy=$(realpath "$1")
tools/lay_out.sh build/typing
cd build/typing
"$mypy" --config-file ../../pyproject.toml bitmtp_edge
