"""Where a target of the fuzzer reads its inputs: each within a second, refused in one
line.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from src.checkpoint import CheckpointError

Make = Callable[[Path], list[bytes]]
LONGEST_TEXT = 1000  # of an error, beside the path
SHORT_PER_VALID = 30
SECONDS_PER_INPUT = 1.0  # of processor time


@dataclass(frozen=True)
class Target:
    name: str  # the file it reads is called so in the folder
    # Gets the bytes of an input, and a file that holds them.
    read: Callable[[bytes, Path], object]
    make: Make  # makes small valid inputs, given a folder to write in
    # Where the valid inputs are long, most of the changed ones start from these, valid or
    # not.
    make_short: Make | None = None
    # What it may raise, and nothing else.
    refusals: type[Exception] | tuple[type[Exception], ...] = CheckpointError
    on_disk: bool = True  # whether `read` wants the file; else it gets the bytes alone
    beside: Mapping[str, bytes] | None = None  # files that lie beside it


class Bed:
    """An empty folder in which one target reads inputs, each a file for a moment."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self.valid = tuple(target.make(folder))
        short = tuple(target.make_short(folder)) if target.make_short else ()
        # Inputs to make changes to; of a target with short ones most are short.
        self.starts = (*self.valid, *short * (SHORT_PER_VALID * len(self.valid)))
        self.count = 0  # of the inputs that were read
        for name, content in (target.beside or {}).items():
            (folder / name).write_bytes(content)
        self.path = folder / target.name
        self._file = os.open(self.path, os.O_CREAT | os.O_RDWR)

    def close(self) -> None:
        os.close(self._file)

    def read(self, data: bytes) -> bool:
        """Read one input; tell whether it was accepted.

        Raise AssertionError where the refusal is not one printable line of bounded
        length, TimeoutError after more than a second of processor time, and what the
        parser may not raise.
        """
        self.count += 1
        if self.target.on_disk:
            os.pwrite(self._file, data, 0)
            os.ftruncate(self._file, len(data))
        started = time.process_time()
        try:
            self.target.read(data, self.path)
        except self.target.refusals as refusal:
            check_text(str(refusal), len(str(self.path)))
            return False
        finally:
            if time.process_time() - started > SECONDS_PER_INPUT:
                raise TimeoutError(
                    f"{len(data)} bytes took over {SECONDS_PER_INPUT} seconds"
                )
        return True


@contextlib.contextmanager
def hangs_are_noticed(bed: Bed, seconds: float = SECONDS_PER_INPUT) -> Iterator[None]:
    """Raise TimeoutError in an input of the bed that takes more processor time.

    One timer for all of them, which looks whether the bed is still at the input it was at
    before: to set it for every input would take longer than some parsers.
    """
    last = -1

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if bed.count == last:
            raise TimeoutError(f"an input took over {seconds} seconds")
        last = bed.count

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def check_text(text: str, path_length: int) -> None:
    """Check that a refusal is one printable line of bounded length."""
    assert text
    assert text.isprintable(), ascii(text)
    assert len(text) < LONGEST_TEXT + path_length, f"{len(text)} characters: {text[:500]}"
