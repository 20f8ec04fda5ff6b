"""Runs every kernel in arrays that lie flush against forbidden pages, at both ends, on
each path.

    python -m tests.csrc.run_guard_pages

A kernel that touches a byte before the first or after the last of any of its arrays kills
the program that runs it, one for each path; the call that did it is printed. Sizes lie
around the widths of vectors, blocks and words, in every combination. Prints the calls of
each kernel. Ends with 0 if nothing was touched.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from . import calls
from .conftest import ISAS
from .guard_cases import CASES, calls_of
from .guard_pages import Blocks, GuardPages, Memory, Note, watching

ROOT = Path(__file__).parents[2]
THREADS = 3
# After which a path is taken to hang; it needs a hundredth of that, and more under a
# sanitizer.
SECONDS = 3600


def run_cases(memory: Memory, note: Note, level: str) -> dict[str, int]:
    """Make all calls of all cases in a memory; return how many each kernel had."""
    with watching(memory, note) as watched:
        for case in CASES.values():
            for variant, sizes in calls_of(case, level):
                case.run(memory, *variant, *sizes)
                memory.release()
    return watched.calls


def run_path(isa: str, level: str, note: Path | None) -> None:
    """Run all cases on one path in this program, and print the counts of each memory as
    JSON.
    """
    calls.set_isa(isa)
    calls.set_num_threads(THREADS)
    memories: dict[str, Memory] = {
        "first": GuardPages("first"),
        "last": GuardPages("last"),
    }
    if level == "few":
        memories = {"blocks": Blocks()}
    print(
        json.dumps({end: run_cases(m, Note(note), level) for end, m in memories.items()})
    )


def counts_of(isa: str, level: str) -> dict[str, dict[str, int]]:
    """Run all cases on one path in a program of its own; RuntimeError names a call that
    fails.
    """
    with tempfile.TemporaryDirectory() as directory:
        note = Path(directory, "note")
        command = [
            sys.executable,
            "-m",
            "tests.csrc.run_guard_pages",
            "--in-this",
            level,
            isa,
            note,
        ]
        run = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
        )
        if run.returncode:
            last = (
                note.read_bytes().decode("ascii", "replace").strip()
                if note.exists()
                else ""
            )
            raise RuntimeError(
                f"{isa}: ended with {run.returncode} in {last}\n{run.stderr}"
            )
    counts: dict[str, dict[str, int]] = json.loads(run.stdout)
    return counts


def print_table(found: dict[str, dict[str, dict[str, int]]]) -> None:
    made = {
        name: sum(end[name] for path in found.values() for end in path.values())
        for name in CASES
    }
    for name, calls_of_kernel in made.items():
        print(f"{name:20}{calls_of_kernel:11,} calls")
    print(
        f"guard pages: {len(CASES)} kernels, {len(found)} paths ({', '.join(found)}), 2 "
        f"ends: {sum(made.values()):,} calls, 0 bytes touched outside"
    )


def main() -> int:
    """Run all paths; return 1 if one of them was killed."""
    if sys.argv[1:2] == ["--in-this"]:
        _, _, level, isa, *note = sys.argv
        run_path(isa, level, Path(note[0]) if note else None)
        return 0
    found: dict[str, dict[str, dict[str, int]]] = {}
    for isa in ISAS:
        if isa not in calls.available_isas():
            print(f"{isa} left out: this machine or build does not have it")
            continue
        try:
            found[isa] = counts_of(isa, "thorough")
        except RuntimeError as error:
            print(error)
            return 1
    print_table(found)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
