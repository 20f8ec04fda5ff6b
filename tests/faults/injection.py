"""Faults at the k-th moment: an allocation or a read that fails, Ctrl-C at a line of code."""

import errno
import io
import mmap
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from src.checkpoint import mapped_file
from src.ml import native_memory
from src.outside import regular_files

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
# What `with` blocks pass through on their way in and out.
CONTEXT_LIBRARY = "contextlib.py"
VISITS = 2


class Fault:
    """Counts moments and says when the k-th has come.

    Args:
        at: which moment fails, from 1 on; 0 for none.

    Attributes:
        moments: how many there were.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.moments = 0

    def is_now(self) -> bool:
        self.moments += 1
        return self.moments == self.at

    @property
    def has_come(self) -> bool:
        return 0 < self.at <= self.moments


Inject = Callable[[int], Any]


@contextmanager
def failing_allocation(at: int) -> Iterator[Fault]:
    """Let the system refuse the k-th piece of native memory."""
    fault, take = Fault(at), native_memory._new_chars

    def refusing(kind: Any, nbytes: int) -> Any:
        if fault.is_now():
            raise MemoryError
        return take(kind, nbytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_memory, "_new_chars", refusing)
        yield fault


def failing_read(how: str) -> Inject:
    """Make a fault of the k-th call that opens, reads or maps a file.

    Args:
        how: "error" for an input/output error; "end" for the end of the file in its middle;
            "short" for a part of what was asked for, which is no error.
    """

    @contextmanager
    def inject(at: int) -> Iterator[Fault]:
        fault = Fault(at)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(regular_files.io, "FileIO", _file_type(fault, how))
            patch.setattr(mapped_file.mmap, "mmap", _map_type(fault, how))
            yield fault

    return inject


def _refuse() -> None:
    raise OSError(errno.EIO, "Input/output error")


def _file_type(fault: Fault, how: str) -> type[io.FileIO]:
    class FaultyFile(io.FileIO):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            if how == "error" and fault.is_now():
                _refuse()
            super().__init__(*arguments, **named)

        def read(self, size: int | None = -1) -> bytes:
            part = super().read(size)
            if not part or not fault.is_now():
                return part
            if how == "error":
                _refuse()
            kept = 0 if how == "end" else len(part) // 2
            self.seek(kept - len(part), io.SEEK_CUR)
            return part[:kept] if how == "end" else part[: max(kept, 1)]

    return FaultyFile


def _map_type(fault: Fault, how: str) -> type[mmap.mmap]:
    class FaultyMap(mmap.mmap):
        def __new__(cls, *arguments: Any, **named: Any) -> "FaultyMap":
            if how == "error" and fault.is_now():
                _refuse()
            return super().__new__(cls, *arguments, **named)

    return FaultyMap


@contextmanager
def interrupt(at: int) -> Iterator[Fault]:
    """Press Ctrl-C before the k-th line of the package that is executed."""
    fault = Fault(at)

    def press(_frame: FrameType) -> None:
        if fault.is_now():
            raise KeyboardInterrupt

    with _at_each_line(press):
        yield fault


def interruptible_moments(run: Callable[[], object], visits: int = VISITS) -> list[int]:
    """Return the moments at which each line is reached for the first few times.

    What happens at the hundredth round of a loop is what happened at the second.
    """
    seen: Counter[tuple[object, int]] = Counter()
    moments, number = [], 0

    def note(frame: FrameType) -> None:
        nonlocal number
        number += 1
        place = frame.f_code, frame.f_lineno
        seen[place] += 1
        if seen[place] <= visits:
            moments.append(number)

    with _at_each_line(note):
        run()
    return moments


@contextmanager
def _at_each_line(do: Callable[[FrameType], None]) -> Iterator[None]:
    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(SOURCE) and not file.endswith(CONTEXT_LIBRARY):
            return None
        if frame.f_back is not None and frame.f_back.f_code.co_filename == __file__:
            return None  # the end of the block that injects
        if event == "line":
            do(frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
