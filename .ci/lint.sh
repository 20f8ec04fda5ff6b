#!/usr/bin/env bash
# Lint and types of everything, in an environment with the extras test, serve, docs and lint.
set -euo pipefail
cd "$(dirname "$0")/.."
ruff check .
ruff format --check .
find csrc -name "*.[ch]" -exec clang-format --dry-run -Werror {} +
actionlint -no-color -shellcheck= -pyflakes=  # .github/workflows, without programs that may be absent
mypy
