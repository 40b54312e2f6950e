#!/usr/bin/env bash
# Usage: tools/typecheck.sh MYPY
# Type-check the package as it is installed: export/ and profiles/ live at the top of the repository,
# and mypy needs the one tree they form in a wheel, so that tree is laid out with links.
set -euo pipefail
cd "$(dirname "$0")/.."
mypy=$(realpath "$1")
tree=build/typing/bitmtp_edge
rm -rf build/typing
mkdir -p "$tree"
ln -s "$PWD"/bitmtp_edge/* "$PWD"/export "$PWD"/profiles "$tree"
cd build/typing
"$mypy" --config-file ../../pyproject.toml bitmtp_edge
