"""Runs the kernel tests on kernels built with AddressSanitizer and
UndefinedBehaviorSanitizer.

    python -m tests.csrc.run_sanitizers [what pytest is to run]

Works in a copy of the repository, which it deletes. In this build vdpbf16ps is emulated
by AVX-512 instructions, so that the tiles of avx512bf16 are tested on processors that
lack it. Nothing is suppressed, and no source is left out. pytest prints how many tests
passed, and skips those of paths that are missing; ends with 0 if every test passed and no
sanitizer had anything to report.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
# test_build.py reads and compiles sources, and runs no kernel.
TESTS = ["tests/csrc", "--ignore=tests/csrc/test_build.py", "tests/ml/ops/test_linear.py"]
# Undefined behaviour that gcc's `undefined` leaves out comes by its own name.
SANITIZERS = "address,undefined,float-cast-overflow,bounds-strict"
FLAGS = [
    "-std=c11",
    "-O1",
    "-g1",
    "-fPIC",
    "-ffp-contract=off",
    "-fopenmp",
    "-fno-omit-frame-pointer",
    f"-fsanitize={SANITIZERS}",
    "-fno-sanitize-recover=all",
    "-DLLAMA_BOLTS_EMULATE_BF16",
]


def copy_repository(copy: Path) -> None:
    """Copy what the kernel tests need, without compiled kernels."""
    ignore = shutil.ignore_patterns("*.so", "__pycache__", "*.pth")
    for name in ("src", "csrc", "tests", "tools", "docs", ".github"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", copy)


def build(
    copy: Path, compiler: str, flags: Sequence[str], changed: Sequence[Path] | None = None
) -> None:
    """Compile sources of the copy, or all, into its package; it becomes the current
    directory.
    """
    spec = importlib.util.spec_from_file_location(
        "build_kernels", copy / "csrc/build_kernels.py"
    )
    if spec is None or spec.loader is None:
        raise ImportError("csrc/build_kernels.py")
    os.chdir(copy)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ffibuilder.emit_c_code("kernels_module.c")
    include = ["-Icsrc", f"-I{sysconfig.get_path('include')}"]

    def compile_one(source: Path) -> str:
        result = f"{'-'.join(source.with_suffix('').parts)}.o"
        if changed is not None and source not in changed:
            return result
        subprocess.run(
            [compiler, *flags, *include, "-c", source, "-o", result], check=True
        )
        return result

    sources = [*map(Path, module.find_sources()), Path("kernels_module.c")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources))
    target = f"src/ml/_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run([compiler, *flags, "-shared", *objects, "-o", target], check=True)


def library_of(compiler: str, name: str) -> str:
    """Return the path of a sanitizer's library, which has to be loaded before Python."""
    command = [compiler, f"-print-file-name={name}"]
    return subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.strip()


def environment_of(compiler: str, log: Path) -> dict[str, str]:
    """Load the sanitizer before Python, and have reports written where pytest cannot hide
    them.
    """
    options = f"halt_on_error=1:log_path={log}"
    return os.environ | {
        "LD_PRELOAD": library_of(compiler, "libasan.so"),
        # Small tensors would lie side by side in Python's own blocks, out of the
        # sanitizer's sight.
        "PYTHONMALLOC": "malloc",
        # Python keeps memory until it ends; the kernels allocate none that could leak.
        # The stand-in stack of gcc 12 is not aligned for AVX-512, so it stays off.
        "ASAN_OPTIONS": f"detect_leaks=0:detect_stack_use_after_return=0:{options}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:{options}",
    }


def main() -> int:
    """Build and test the copy; return pytest's exit code, or 1 if there was a report."""
    compiler = os.environ.get("CC", "gcc")
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        copy_repository(copy)
        build(copy, compiler, FLAGS)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        environment = environment_of(compiler, copy / "report")
        done = subprocess.run(
            [*command, *(sys.argv[1:] or TESTS)], cwd=copy, env=environment
        )
        reports = [
            path.read_text(errors="replace") for path in sorted(copy.glob("report.*"))
        ]
        os.chdir(ROOT)
    print(*reports, f"sanitizers: {SANITIZERS} of {compiler}, no suppressions", sep="\n")
    print(f"sanitizer reports: {len(reports)}")
    return done.returncode or int(bool(reports))


if __name__ == "__main__":
    sys.exit(main())
