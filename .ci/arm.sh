#!/usr/bin/env bash
# Builds the kernels for 64-bit Arm Linux with the clang of the package ziglang, asks the bundled model
# its question on three processors under qemu, and runs tests there. Debian's packages are unpacked into
# a directory; nothing is installed. Arguments: that directory, and what pytest is to run.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$1
shift
command -v apt-get >/dev/null || { echo "skipped: no apt-get, and so no qemu"; exit 0; }

apt_arm=(-qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root
    -o Dir::State="$work/state" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache")
mkdir -p "$work"/{state/lists/partial,cache/archives/partial,debs,arm,host,site,objects}
touch "$work/status"
libraries="libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5 libcrypt1"
python="libpython3.11-minimal libpython3.11-stdlib python3.11-minimal"
(apt-get "${apt_arm[@]}" update && cd "$work/debs" && apt-get -qq update \
    && apt-get -qq -o APT::Sandbox::User=root download qemu-user-static \
    && apt-get "${apt_arm[@]}" download $libraries $python) >"$work/apt.log" 2>&1 \
    || { echo "skipped: apt-get has no qemu, or no Python 3.11 for Arm"; tail -1 "$work/apt.log"; exit 0; }
for package in "$work"/debs/*.deb; do
    case $package in *_amd64.deb) dpkg -x "$package" "$work/host" ;; *) dpkg -x "$package" "$work/arm" ;; esac
done
platforms=(--platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64)
pip install --quiet --target "$work/site" --only-binary :all: --python-version 311 "${platforms[@]}" \
    numpy ml_dtypes cffi structlog regex rich prompt_toolkit pytest hypothesis setuptools

python - "$work/module.c" <<'PYTHON'
import sys
sys.path.insert(0, "csrc")
from build_kernels import ffibuilder
ffibuilder.emit_c_code(sys.argv[1])
PYTHON
include=$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')
flags="-std=c11 -O3 -g0 -ffp-contract=off -fPIC -pthread -DLLAMA_BOLTS_PTHREADS -Icsrc -I$include"
printf '%s\n' csrc/*.c "$work/module.c" | xargs -P "$(nproc)" -I{} bash -c \
    'python -m ziglang cc -target aarch64-linux-gnu.2.28 '"$flags"' -c {} -o "$0/$(basename {}).o"' "$work/objects"
mkdir -p "$work/tree"
cp -r src tests tools csrc pyproject.toml README.md docs "$work/tree"
rm -f "$work"/tree/src/ml/_kernels*.so
python -m ziglang cc -target aarch64-linux-gnu.2.28 -shared -pthread "$work"/objects/*.o -lm \
    -o "$work/tree/src/ml/_kernels.abi3.so"

cd "$work/tree"
on() {
    PYTHONPATH=$work/site "$work/host/usr/bin/qemu-aarch64-static" -cpu "$1" -L "$work/arm" \
        "$work/arm/usr/bin/python3.11" "${@:2}"
}
for processor in max neoverse-n1 cortex-a72; do
    answer=$(on $processor -m src.main --temperature 0 --no-stats -p \
        "What is the capital of Massachusetts? Answer in one word.")
    test "$answer" = "Boston" || { echo "$processor: expected Boston, got: $answer"; exit 1; }
    on $processor -c 'from src import ml; info = ml.build_info(); print(info["isa"], info["compiler"])'
done
on max -m pytest -q -p no:cacheprovider "$@"
