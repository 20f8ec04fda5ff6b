#!/usr/bin/env bash
# Compiles the kernels for processors and systems that CI does not have, by the clang of the package
# ziglang, without linking or running them. Arguments: a directory for the objects, which this makes, and
# the targets, all of them if none is named.
set -euo pipefail
cd "$(dirname "$0")/.."
pip install --quiet ziglang==0.17.1
mkdir "$1"
targets=(aarch64-linux-gnu aarch64-macos x86_64-macos x86_64-windows-gnu riscv64-linux-gnu)
if [ $# -gt 1 ]; then targets=("${@:2}"); fi
flags=(-std=c11 -O1 -g0 -ffp-contract=off -Wall -Wextra -Werror -DLLAMA_BOLTS_PTHREADS -Icsrc)
sources=$(python csrc/write_units.py)
for target in "${targets[@]}"; do
    for source in $sources; do
        printf '%s %s %s/%s-%s.o\n' "$target" "$source" "$1" "$target" "$(tr / - <<<"${source%.c}")"
    done
done | xargs -P "$(nproc)" -L 1 bash -c \
    'python -m ziglang cc '"${flags[*]}"' -target "$0" -c "$1" -o "$2" || { echo "$0: $1"; exit 255; }'
echo "the kernels compile for ${targets[*]}"
