"""ik_llama.cpp, built for this processor from a directory of its sources.

It is a fork of llama.cpp with faster products on CPUs. It is on no package index, and its
C functions take other arguments than llama.cpp's, so a few lines of C are compiled with
its header.
"""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

_CALLS = Path(__file__).with_name("ik_llama_cpp.c")
_MOST_TOKENS = 512  # of one call, as for llama.cpp


def build(source: Path) -> Path:
    """Build the library in `source`/build, and return the path of the compiled calls.

    A second call finds what the first one has built.

    Raises:
        SystemExit: If `source` is not a directory of ik_llama.cpp.
    """
    if not (source / "ggml" / "src" / "iqk").is_dir():
        raise SystemExit(f"{source} contains no sources of ik_llama.cpp")
    built = source / "build"
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "GGML_NATIVE": "ON",
        "BUILD_SHARED_LIBS": "ON",
        "LLAMA_BUILD_SERVER": "OFF",
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_CURL": "OFF",
    }
    defined = [f"-D{name}={value}" for name, value in options.items()]
    configure = ["cmake", "-S", source, "-B", built, *defined]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        ["cmake", "--build", built, "--target", "llama", "--parallel"], check=True
    )
    [library] = built.glob("**/libllama.so")
    [tensors] = built.glob("**/libggml.so")
    calls = built / "llama_bolts_calls.so"
    headers = [f"-I{source / 'include'}", f"-I{source / 'ggml' / 'include'}"]
    linked = [argument for path in (library, tensors) for argument in _link_with(path)]
    command = ["cc", "-O2", "-shared", "-fPIC", *headers, _CALLS, "-o", calls, *linked]
    subprocess.run(command, check=True)
    return calls


def _link_with(library: Path) -> list[str]:
    return [str(library), f"-Wl,-rpath,{library.parent}"]


class Calls:
    """The compiled calls, with a loaded model and a cache.

    Args:
        calls: What `build` returned.
        gguf: The model.
        repack: Lay the weights out anew for this processor, as with `-rtr 1`.
        positions: The length of the cache.
        threads: Threads for prompts and steps.
    """

    def __init__(
        self, calls: Path, gguf: Path, repack: bool, positions: int, threads: int
    ) -> None:
        lib = ctypes.CDLL(str(calls))
        lib.engine_open.restype = ctypes.c_void_p
        lib.engine_logits.restype = ctypes.POINTER(ctypes.c_float)
        self._lib = lib
        opened = lib.engine_open(str(gguf).encode(), int(repack), positions, threads)
        if not opened:
            raise SystemExit(f"ik_llama.cpp refuses {gguf}")
        self._engine = ctypes.c_void_p(opened)
        self._vocabulary_size = lib.engine_vocabulary(self._engine)
        self._length = 0

    def clear(self) -> None:
        """Empty the cache."""
        self._lib.engine_clear(self._engine)
        self._length = 0

    def truncate(self, position: int) -> None:
        """Remove the tokens from a position on."""
        if not self._lib.engine_truncate(self._engine, position):
            raise SystemExit("ik_llama.cpp could not remove the last tokens")
        self._length = position

    def run(self, ids: list[int]) -> Any:
        """Run tokens after those that are cached.

        Return the logits after the last, float32 [V].
        """
        for start in range(0, len(ids), _MOST_TOKENS):
            part = ids[start : start + _MOST_TOKENS]
            tokens = (ctypes.c_int32 * len(part))(*part)
            if self._lib.engine_run(self._engine, tokens, len(part), self._length) != 0:
                raise SystemExit("ik_llama.cpp could not decode")
            self._length += len(part)
        logits = self._lib.engine_logits(self._engine)
        return np.ctypeslib.as_array(logits, (self._vocabulary_size,)).copy()
