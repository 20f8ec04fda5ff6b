#!/usr/bin/env bash
# Builds a wheel for 64-bit Arm Linux with the clang of the package ziglang, installs it into a Python for
# Arm under qemu, where it answers a question on three processors, compares the bits of all kernels and
# models with those of this machine, and runs tests. Debian's packages are unpacked into a directory;
# nothing is installed on this machine. Arguments: that directory, and what pytest is to run on a processor
# with BF16 instructions; or "slow": all tests of kernels and models, on all three, and the kernels under
# sanitizers where a gcc for Arm is installed, which takes hours.
set -euo pipefail
cd "$(dirname "$0")/.."
unset LLAMA_BOLTS_WERROR  # another compiler, with warnings of its own
work=$1
shift
command -v apt-get >/dev/null || { echo "skipped: no apt-get, and so no qemu"; exit 0; }

apt_arm=(-qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root
    -o Dir::State="$work/state" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache")
mkdir -p "$work"/{state/lists/partial,cache/archives/partial,debs,arm,host,site}
touch "$work/status"
libraries="libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5 libcrypt1"
python="libpython3.11-minimal libpython3.11-stdlib python3.11-minimal libpython3.11-dev"
if [ "$*" = slow ]; then libraries+=" libasan8 libubsan1 libgomp1"; fi
(apt-get "${apt_arm[@]}" update && cd "$work/debs" && apt-get -qq update \
    && apt-get -qq -o APT::Sandbox::User=root download qemu-user-static \
    && apt-get "${apt_arm[@]}" download $libraries $python) >"$work/apt.log" 2>&1 \
    || { echo "skipped: apt-get has no qemu, or no Python 3.11 for Arm"; tail -1 "$work/apt.log"; exit 0; }
for package in "$work"/debs/*.deb; do
    case $package in *_amd64.deb) dpkg -x "$package" "$work/host" ;; *) dpkg -x "$package" "$work/arm" ;; esac
done
platforms=(--platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64)
pip install --quiet --target "$work/site" --only-binary :all: --python-version 311 "${platforms[@]}" \
    numpy ml_dtypes cffi structlog regex rich prompt_toolkit jinja2 platformdirs pytest hypothesis setuptools pip

# pyconfig.h of Debian's own Python includes that of the processor.
export CPATH=$work/arm/usr/include
compiler="python -m ziglang cc -target aarch64-linux-gnu.2.28"
CC=$compiler LDSHARED="$compiler -shared" _PYTHON_HOST_PLATFORM=linux-aarch64 \
    python setup.py -q bdist_wheel --dist-dir "$work/wheel" >"$work/wheel.log" 2>&1 \
    || { cat "$work/wheel.log"; exit 1; }

# A test that starts Python starts it by its name, that of a script here. Tools of this machine, which
# would compile for it, are not found.
processors="max neoverse-n1 cortex-a72"
for processor in $processors; do
    cat >"$work/$processor" <<SCRIPT
#!/bin/bash
export PYTHONHOME=$work/arm/usr PYTHONPATH=$work/site PATH=$work
exec $work/host/usr/bin/qemu-aarch64-static -cpu $processor -0 "\$0" -L $work/arm \\
    $work/arm/usr/bin/python3.11 "\$@"
SCRIPT
    chmod +x "$work/$processor"
done
"$work/max" -m pip install --quiet --no-index --no-deps --target "$work/site" "$work"/wheel/*.whl

for processor in $processors; do
    answer=$(cd "$work" && "./$processor" -m llama_bolts --temperature 0 --no-stats -p \
        "What is the capital of Massachusetts? Answer in one word.")
    test "$answer" = "Boston" || { echo "$processor: expected Boston, got: $answer"; exit 1; }
    (cd "$work" && "./$processor" -c 'from llama_bolts import ml; info = ml.build_info()
print(info["isa"], info["compiler"])')
done

mkdir -p "$work/tree"
cp -r src tests tools csrc pyproject.toml README.md docs "$work/tree"
rm -f "$work"/tree/src/ml/_kernels*.so
cp "$work"/site/llama_bolts/ml/_kernels.abi3.so "$work/tree/src/ml"
python -m tests.csrc.run_digests >"$work/digests"
cd "$work/tree"
compare_bits() { "$work/$1" -m tests.csrc.run_digests "${@:2}" | diff "$work/digests" -; }
compare_bits max neonbf16
compare_bits neoverse-n1 neondot
compare_bits cortex-a72 neon portable
if [ "$*" != slow ]; then
    "$work/max" -m pytest -q -p no:cacheprovider "$@"
    exit
fi
for processor in $processors; do
    echo "$processor"
    "$work/$processor" -m pytest -q -p no:cacheprovider tests/csrc tests/model
done
compiler=$(command -v aarch64-linux-gnu-gcc) || { echo "skipped: no aarch64-linux-gnu-gcc for sanitizers"; exit 0; }
CPATH=$work/arm/usr/include/python3.11:$CPATH CC=$compiler "$work/max" -m tests.csrc.run_sanitizers
