"""Measures the machine's roofs, in the same run as what is compared with them."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from cffi import FFI

SOURCE = Path(__file__).with_name("probes.c")
SURFACE = """
double read_rate(const char *buffer, ptrdiff_t bytes, int threads, uint64_t *sum);
double multiply_add_rate(const char *isa, ptrdiff_t rounds, int threads);
"""
PROBE_BYTES = 256 * 2**20
PROBE_ROUNDS = 4_000_000


class Roofs:
    """The probes, compiled for this process."""

    def __init__(self, isa: str, threads: int) -> None:
        self._ffi = FFI()
        self._ffi.cdef(SURFACE)
        with tempfile.TemporaryDirectory() as directory:
            library = str(Path(directory, "probes.so"))
            compiler = os.environ.get("CC", "gcc")
            flags = ["-O2", "-ftree-vectorize", "-fopenmp", "-fPIC", "-shared"]
            subprocess.run([compiler, *flags, str(SOURCE), "-o", library], check=True)
            self._lib: Any = self._ffi.dlopen(library)
        self._isa, self._threads = isa.encode(), threads
        self._buffer = np.ones(PROBE_BYTES, np.uint8)

    def read_gigabytes(self) -> float:
        """Return the best of three passes over 256 MiB, in GB/s."""
        buffer, total = self._ffi.from_buffer(self._buffer), self._ffi.new("uint64_t *")
        passes = [self._lib.read_rate(buffer, PROBE_BYTES, self._threads, total) for _ in range(3)]
        return float(max(passes)) / 1e9

    def gigaflops(self) -> float:
        """Return the best of three runs of the multiply-adds that the kernels use, in GFLOPS."""
        runs = [
            self._lib.multiply_add_rate(self._isa, PROBE_ROUNDS, self._threads) for _ in range(3)
        ]
        return float(max(runs)) / 1e9
