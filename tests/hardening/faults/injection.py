"""Faults at the k-th moment: an allocation or a read that fails, Ctrl-C at a line of
code.
"""

import errno
import io
import linecache
import mmap
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from src.ml import kernels

HERE = str(Path(__file__).resolve().parent)
SOURCE = str(Path(__file__).resolve().parents[3] / "src")
# What `with` blocks pass through on their way in and out.
CONTEXT_LIBRARY = "contextlib.py"


class Fault:
    """Counts moments, from 1 on, and says when that has come which is to fail."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.has_come = False

    def is_now(self) -> bool:
        self._left -= 1
        self.has_come |= self._left == 0
        return self._left == 0


@dataclass(frozen=True)
class Line:
    """A line of code, when it is reached for the n-th time."""

    code: CodeType
    number: int
    visit: int


Inject = Callable[[Any], AbstractContextManager[Fault]]


@contextmanager
def failing_allocation(at: int) -> Iterator[Fault]:
    """Let the system refuse the k-th piece of native memory."""
    fault = Fault(at)
    take = kernels.new_bytes

    def refusing(kind: Any, nbytes: int) -> Any:
        if fault.is_now():
            raise MemoryError
        return take(kind, nbytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "new_bytes", refusing)
        yield fault


def failing_read(how: str) -> Inject:
    """Make a fault of the k-th call that opens, reads or maps a file.

    It is an input/output "error", the "end" of the file in its middle, or a "short" read
    of a part of what was asked for, which is no error.
    """

    @contextmanager
    def inject(at: int) -> Iterator[Fault]:
        fault = Fault(at)

        def may_refuse() -> None:
            if how == "error" and fault.is_now():
                raise OSError(errno.EIO, "Input/output error")

        class FaultyFile(io.FileIO):
            def __init__(self, *arguments: Any, **named: Any) -> None:
                may_refuse()
                super().__init__(*arguments, **named)

            def read(self, size: int | None = -1) -> bytes:
                part = super().read(size)
                if part:
                    may_refuse()
                if not part or how == "error" or not fault.is_now():
                    return part
                kept = 0 if how == "end" else max(len(part) // 2, 1)
                self.seek(kept - len(part), io.SEEK_CUR)
                return part[:kept]

        class FaultyMap(mmap.mmap):
            def __new__(cls, *arguments: Any, **named: Any) -> "FaultyMap":
                may_refuse()
                return super().__new__(cls, *arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(io, "FileIO", FaultyFile)
            patch.setattr(mmap, "mmap", FaultyMap)
            yield fault

    return inject


@contextmanager
def interrupt(line: Line) -> Iterator[Fault]:
    """Press Ctrl-C before a line of the package is executed."""
    fault = Fault(line.visit)

    def press(frame: FrameType) -> None:
        if frame.f_lineno == line.number and fault.is_now():
            raise KeyboardInterrupt

    with _at_each_line_of(lambda code: code is line.code, press):
        yield fault


def lines_of(run: Callable[[], object], visits: int) -> list[Line]:
    """Return each line of the package that a call reaches, for the first few times that
    it does.

    What happens in the hundredth round of a loop is what happened in the second. The ways
    of `with` blocks in and out, in the standard library, are among them.
    """
    seen: Counter[tuple[CodeType, int]] = Counter()
    lines = []

    def note(frame: FrameType) -> None:
        place = frame.f_code, frame.f_lineno
        seen[place] += 1
        if seen[place] <= visits and not _is_end_of_a_handler(*place):
            lines.append(Line(*place, seen[place]))

    with _at_each_line_of(_is_ours, note):
        run()
    return lines


def _is_end_of_a_handler(code: CodeType, number: int) -> bool:
    """Tell the line of `with` that leaves a handler: no signal is seen there, only a
    trace is.

    An exception that a trace raises in it would keep the handled one alive for good
    (Python 3.11).
    """
    line = linecache.getline(code.co_filename, number)
    return code.co_filename.endswith(CONTEXT_LIBRARY) and line.strip() == "return False"


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(SOURCE) or code.co_filename.endswith(
        CONTEXT_LIBRARY
    )


@contextmanager
def _at_each_line_of(
    wanted: Callable[[CodeType], bool], do: Callable[[FrameType], None]
) -> Iterator[None]:
    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "call":
            return trace if wanted(frame.f_code) and not _is_of_the_tests(frame) else None
        if event == "line":
            do(frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _is_of_the_tests(frame: FrameType) -> bool:
    """Tell whether a `with` block begins or ends that is not the package's own."""
    caller = frame.f_back
    is_with = frame.f_code.co_filename.endswith(CONTEXT_LIBRARY)
    return is_with and caller is not None and caller.f_code.co_filename.startswith(HERE)
