"""Runs every kernel under memcheck (valgrind), on the paths that valgrind knows.

    python -m tests.csrc.run_valgrind

Every array, the scratch and the structs are blocks of malloc of their exact size, results
and scratch with nothing in them; memcheck sees each byte that is touched outside of a
block, and each decision on a byte that nobody wrote. It runs the extension as it is
installed. Python and NumPy make noise of their own, so an error counts when a frame of it
lies in the extension; no suppression is used. First a kernel is told to read one word too
far, and another to compare bytes that nobody wrote; both must be reported. valgrind has
no AVX-512: the paths are avx2 and portable. Prints the calls and the errors; ends with 0
if there was none, or if valgrind is missing, which it says.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from .run_guard_pages import ROOT

PATHS = ("portable", "avx2")
EXTENSION = "_kernels."
# A word behind a block; the largest of numbers of which the last was never written.
MISTAKES = """
from tests.csrc import calls
from tests.csrc.calls import lib, pointer
from tests.csrc.guard_pages import Blocks
from tests.csrc.operands import f32
calls.set_isa({isa!r})
array, index = Blocks().array((64,), f32), Blocks().array((1,), "i4")
array[:63] = range(63)
lib.probe_read(pointer(array), 65 * 4, 1, 1)
lib.argmax(pointer(index), pointer(array), 1, 64, lib.TYPE_FLOAT32, 1)
"""


def run_under_valgrind(valgrind: str, arguments: list[str]) -> tuple[str, list[str]]:
    """Run Python under memcheck; return what it printed,
    and the errors in the extension.
    """
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        command = [
            valgrind,
            "--tool=memcheck",
            "--leak-check=no",
            "--error-limit=no",
            "--xml=yes",
            f"--xml-file={report}",
            "--default-suppressions=no",
            sys.executable,
            *arguments,
        ]
        # Python's own allocator would hide blocks from memcheck.
        environment = os.environ | {"PYTHONMALLOC": "malloc"}
        run = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True
        )
        if run.returncode:
            raise RuntimeError(f"ended with {run.returncode}: {run.stderr}")
        return run.stdout, errors_of(report)


def errors_of(report: Path) -> list[str]:
    """Return the kind and place of each error that has a frame in the extension."""
    found = []
    for error in ET.parse(report).getroot().iter("error"):
        stack = error.find("stack")
        frames = [] if stack is None else list(stack.iter("frame"))
        ours = [frame for frame in frames if EXTENSION in (frame.findtext("obj") or "")]
        # Leaks are those of Python's import: the kernels allocate nothing.
        if ours and not (error.findtext("kind") or "").startswith("Leak_"):
            places = (
                (
                    f"{frame.findtext('fn')} "
                    f"({frame.findtext('file')}:{frame.findtext('line')})"
                )
                for frame in ours
            )
            found.append(f"{error.findtext('kind')} in {' < '.join(places)}")
    return found


def main() -> int:
    """Run both paths; return 1 if an error was found, or one that was made was not."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        print("valgrind left out: it is not installed, NOTHING WAS CHECKED")
        return 0
    bad = 0
    for isa in PATHS:
        _, made = run_under_valgrind(valgrind, ["-c", MISTAKES.format(isa=isa)])
        wanted = ("InvalidRead in read_", "UninitCondition in argmax_row")
        if not all(any(error.startswith(text) for error in made) for text in wanted):
            print(f"{isa}: memcheck does not see the errors that were made, but {made}")
            bad += 1
        printed, errors = run_under_valgrind(
            valgrind, ["-m", "tests.csrc.run_guard_pages", "--in-this", "few", isa]
        )
        counts = json.loads(printed)["blocks"]
        calls = sum(counts.values())
        print(
            f"valgrind: {isa}: {len(counts)} kernels, {calls:,} calls, {len(errors)} "
            "errors"
        )
        print(*errors, sep="\n", end="\n" if errors else "", flush=True)
        bad += len(errors)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
