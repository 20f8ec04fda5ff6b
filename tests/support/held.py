"""What a process holds of the system at a moment: tests compare two moments."""

import gc
import os
import resource
import weakref
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from src.ml import kernels

_PROCESS = Path("/proc/self")


class NativeBytes:
    """Counts the bytes of native memory that are alive, and the most that were.

    All of it is taken by one function, which this replaces as long as `patch` lasts.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.alive = self.peak = self._calls = 0
        self._take = kernels.new_bytes
        self._alive: dict[int, weakref.ref[Any]] = {}
        patch.setattr(kernels, "new_bytes", self._counted)

    def _counted(self, kind: Any, nbytes: int) -> Any:
        number = self._calls
        self._calls = self._calls + 1
        memory = self._take(kind, nbytes)

        def gone(_reference: object) -> None:
            self.alive -= nbytes
            del self._alive[number]

        self.alive += nbytes
        self.peak = max(self.peak, self.alive)
        self._alive[number] = weakref.ref(memory, gone)
        return memory


@dataclass(frozen=True)
class Held:
    resident: int  # bytes of memory in use
    native: int  # bytes of native memory of tensors
    descriptors: int
    files: int  # that are mapped, each as often as it is mapped
    threads: int

    def minus(self, other: "Held") -> "Held":
        return Held(
            *(getattr(self, f.name) - getattr(other, f.name) for f in fields(self))
        )


def held_now(native: NativeBytes, *, collect: bool = True) -> Held:
    """Returns what the process holds, once all garbage has been collected if so
    wished.
    """
    if not _PROCESS.exists():
        pytest.skip("the system does not tell what a process holds")
    if collect:
        gc.collect()
    pages = int((_PROCESS / "statm").read_text(encoding="ascii").split()[1])
    maps = (_PROCESS / "maps").read_text(encoding="utf-8", errors="replace").splitlines()
    model_files = (".pth", ".safetensors", ".model", ".json")
    return Held(
        pages * resource.getpagesize(),
        native.alive,
        len(os.listdir(_PROCESS / "fd")),
        sum(line.endswith(model_files) for line in maps),
        len(os.listdir(_PROCESS / "task")),
    )
