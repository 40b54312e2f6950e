#!/usr/bin/env bash
# Usage: tools/lay_out.sh FOLDER
# Lay the package out in FOLDER as a wheel has it, with links: export/ and profiles/ live at the top of
# the repository and belong below bitmtp_edge.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf "$1"
mkdir -p "$1/bitmtp_edge"
ln -s "$PWD"/bitmtp_edge/* "$PWD"/export "$PWD"/profiles "$1/bitmtp_edge"
