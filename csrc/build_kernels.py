"""Describe the C extension to cffi: its surface, its sources and its compiler flags.

setup.py names ``ffibuilder`` as a cffi module. No flag may relax floating-point
arithmetic or restrict the build to one machine, because instruction sets are selected at
run time.
"""

from __future__ import annotations

import logging
import os
import runpy
import sys
import tempfile
from pathlib import Path

import cffi
from setuptools._distutils.ccompiler import new_compiler
from setuptools._distutils.errors import CompileError, LinkError
from setuptools._distutils.sysconfig import customize_compiler, get_python_inc

# No program reads the floating-point exception flags, and if they must be preserved, gcc
# does not vectorise exp. A short loop runs at 0.93 of its speed if it happens to cross a
# cache line.
COMPILE_FLAGS = [
    "-std=c11",
    "-O3",
    "-g0",
    "-ffp-contract=off",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-Wswitch-enum",
    "-falign-loops=64",
]
# If set, as in CI, compiler warnings are errors.
WERROR_VARIABLE = "LLAMA_BOLTS_WERROR"
# If set to "pthreads", OpenMP is not used.
THREADS_VARIABLE = "LLAMA_BOLTS_THREADS"
OPENMP_FLAGS = ["-fopenmp"]
OPENMP_PROGRAM = (
    "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n"
)
PTHREADS_FLAGS = ["-pthread", "-DLLAMA_BOLTS_PTHREADS"]
PTHREADS_PROGRAM = (
    "#include <pthread.h>\nint main(void) { return pthread_detach(pthread_self()); }\n"
)
# Intel processors from Skylake to Cascade Lake decode a loop again in each iteration if
# its jump crosses a 32-byte boundary (the "JCC erratum"). Tiles then run at 0.7 of their
# speed.
BRANCH_FLAG = "-Wa,-mbranches-within-32B-boundaries"
# Only the module's initializer is exported, so that no other library can replace a
# kernel. A function that writes past an array on its stack terminates the process.
HARDENING_FLAGS = ["-fvisibility=hidden", "-fstack-protector-strong"]
# All symbols are resolved when the library is loaded, and their table is then read-only.
LINK_HARDENING_FLAG = "-Wl,-z,relro,-z,now"
PYTHON_PROGRAM = "#include <Python.h>\nint main(void) { return 0; }\n"
NO_COMPILER = (
    "error: building the kernels needs a C compiler and the headers of Python: "
    "install them, such as with `apt install gcc python3-dev` on Debian and Ubuntu"
)


find_sources = runpy.run_path("csrc/write_units.py")["find_sources"]


def read_surface(directory: Path) -> str:
    """Return the declarations in dtypes.h and kernels.h, which cffi can parse."""
    texts = [
        (directory / name).read_text(encoding="utf-8")
        for name in ("dtypes.h", "kernels.h")
    ]
    return "".join(
        text.split("/* cffi: begin */")[1].split("/* cffi: end */")[0] for text in texts
    )


def builds(program: str, *flags: str) -> bool:
    """Return whether a program can be compiled and linked with some flags."""
    compiler = new_compiler()
    customize_compiler(compiler)
    compiler.add_include_dir(get_python_inc())
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "probe.c")
        source.write_text(program, encoding="utf-8")
        logging.disable(logging.INFO)  # hide the compiler commands
        try:
            options = {"extra_postargs": list(flags)}
            objects = compiler.compile([str(source)], output_dir=os.path.sep, **options)
            compiler.link_executable(objects, str(Path(directory, "probe")), **options)
        except (CompileError, LinkError):
            return False
        finally:
            logging.disable(logging.NOTSET)
    return True


def thread_flags() -> list[str]:
    """Return the flags for OpenMP if available, or else for pthreads.

    Without both, the list is empty and the kernels run on one thread.
    """
    if os.environ.get(THREADS_VARIABLE) != "pthreads" and builds(
        OPENMP_PROGRAM, *OPENMP_FLAGS
    ):
        return OPENMP_FLAGS
    if builds(PTHREADS_PROGRAM, *PTHREADS_FLAGS):
        return PTHREADS_FLAGS
    print(
        "warning: neither OpenMP nor pthreads: the kernels are built for one thread",
        flush=True,
    )
    return []


def make_builder() -> cffi.FFI:
    """Return the cffi builder for `llama_bolts.ml._kernels`.

    The working directory must be the root of the repository.
    """
    if not builds(PYTHON_PROGRAM):
        sys.exit(NO_COMPILER)
    threads = thread_flags()
    branches = [BRANCH_FLAG] if builds(PYTHON_PROGRAM, BRANCH_FLAG) else []
    hardening = [flag for flag in HARDENING_FLAGS if builds(PYTHON_PROGRAM, flag)]
    link_hardening = []
    if builds(PYTHON_PROGRAM, LINK_HARDENING_FLAG):
        link_hardening = [LINK_HARDENING_FLAG]
    errors = ["-Werror"] if os.environ.get(WERROR_VARIABLE) else []
    builder = cffi.FFI()
    builder.cdef(read_surface(Path("csrc")))
    builder.set_source(
        "llama_bolts.ml._kernels",
        '#include "kernels.h"',
        sources=find_sources(),
        depends=sorted(path.as_posix() for path in Path("csrc").rglob("*.h")),
        include_dirs=["csrc"],
        extra_compile_args=COMPILE_FLAGS + errors + branches + hardening + threads,
        extra_link_args=threads + link_hardening,
    )
    return builder


ffibuilder = make_builder()
