#!/usr/bin/env bash
# Lint and types of everything, in an environment with the extras test, serve, docs and lint.
set -euo pipefail
cd "$(dirname "$0")/.."
ruff check .
ruff format --check .
clang-format --dry-run -Werror csrc/*.c csrc/*.h csrc/*.inc
actionlint -no-color -shellcheck= -pyflakes=  # .github/workflows, without programs that may be absent
mypy
