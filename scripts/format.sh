#!/usr/bin/env bash
# Formats the C++ sources with the clang-format of .venv, one version for everybody.
#   format.sh [--check]     --check only tells, and fails, where a file differs
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(-i)
[ "${1:-}" = --check ] && mode=(--dry-run --Werror)
find src examples -name '*.h' -print0 -o -name '*.cc' -print0 |
  xargs -0 --no-run-if-empty .venv/bin/clang-format "${mode[@]}"
