"""Runs every kernel on several threads under ThreadSanitizer, on each path.

    python -m tests.csrc.run_thread_sanitizer

Works in a copy of the repository, which it deletes. The threads of libgomp wait for one
another in a way that the sanitizer does not see, so the copy's kernels use the pool of
pthreads (`threads.c`). The sizes are those of `guard_cases.py` that reach several blocks
and threads, with all combinations of types, formats and operations. First mistakes are
made in kernels, one at a time, and each must be reported in its file. Nothing is
suppressed. Prints for each path the calls and the reports; ends with 0 if there was none,
and one of each mistake.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import calls
from .conftest import ISAS
from .guard_cases import CASES, calls_of
from .guard_pages import Blocks, Note, watching
from .run_sanitizers import ROOT, build, copy_repository, library_of

THREADS = 3
FLAGS = [
    "-std=c11",
    "-O1",
    "-g1",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-omit-frame-pointer",
    "-fsanitize=thread",
    "-DLLAMA_BOLTS_EMULATE_BF16",
    "-pthread",
    "-DLLAMA_BOLTS_PTHREADS",
    "-DLLAMA_BOLTS_ALL_THREADS",
]
# Of a kernel, in its file: what is right, and what makes threads share what they must
# not.
MISTAKES = {
    # All threads keep their sums in the same scratch.
    "products/linear.c": ("pass->threads + thread *", "pass->threads + 0 * thread *"),
    "attention/matmul.c": ("batch->scratch + thread;", "batch->scratch;"),
    "attention/attention.c": (
        "pass->scratch + thread * plan->thread_floats",
        "pass->scratch",
    ),
    # A region ends while others still have units.
    "threads.c": (
        "    wait_for_units(opened);",
        "    (void)wait_for_units, (void)opened;",
    ),
    # The spans of two threads overlap by an element.
    "rows/rows.c": ("start = unit * SPAN, at", "start = unit * (SPAN - 1), at"),
}


def run_cases(isa: str, names: list[str]) -> None:
    """Call kernels on several threads, and print as JSON the calls and the regions that
    ran.
    """
    calls.set_isa(isa)
    calls.set_num_threads(THREADS)
    memory = Blocks()
    with watching(memory, Note(None)) as watched:
        for name in names:
            for variant, sizes in calls_of(CASES[name], "long"):
                CASES[name].run(memory, *variant, *sizes)
                memory.release()
    print(sum(watched.calls.values()))


def run_under_sanitizer(
    copy: Path, isa: str, names: Sequence[str], options: str
) -> tuple[str, list[str]]:
    """Run cases in a program of its own; return what it printed, and the reports."""
    with tempfile.TemporaryDirectory() as directory:
        environment = os.environ | {
            "LD_PRELOAD": library_of("gcc", "libtsan.so"),
            "PYTHONPATH": str(copy),
            "TSAN_OPTIONS": f"log_path={directory}/report:exitcode=0:{options}",
        }
        # Where addresses are too random for the sanitizer it would not start.
        command = [
            "setarch",
            "-R",
            sys.executable,
            "-m",
            "tests.csrc.run_thread_sanitizer",
            "--in-this",
            isa,
            *names,
        ]
        run = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True
        )
        if run.returncode:
            raise RuntimeError(f"{isa}: ended with {run.returncode}: {run.stderr}")
        texts = [path.read_text(errors="replace") for path in Path(directory).iterdir()]
    reports = [
        part for text in texts for part in text.split(f"{'=' * 18}\n") if part.strip()
    ]
    return run.stdout, reports


def unseen_mistakes(copy: Path) -> list[str]:
    """Make each mistake in the copy, and take it back; return those that were not
    reported.
    """
    unseen = []
    for name, (right, wrong) in MISTAKES.items():
        source = copy / "csrc" / name
        text = source.read_text(encoding="utf-8")
        assert right in text, f"{name}: {right} is not there any more"
        source.write_text(text.replace(right, wrong), encoding="utf-8")
        build(copy, "gcc", FLAGS, [source.relative_to(copy)])
        names = {"matmul": "batched_matmul", "threads": "linear", "rows": "elementwise"}
        kernel = names.get(source.stem, source.stem)
        _, reports = run_under_sanitizer(copy, "portable", [kernel], "halt_on_error=1")
        if not any("data race" in report and source.name in report for report in reports):
            unseen.append(name)
        source.write_text(text, encoding="utf-8")
        build(copy, "gcc", FLAGS, [source.relative_to(copy)])
    return unseen


def main() -> int:
    """Run all paths; return 1 if there was a report,
    or none of a mistake that was made.
    """
    if sys.argv[1:2] == ["--in-this"]:
        run_cases(sys.argv[2], sys.argv[3:])
        return 0
    bad = 0
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        copy_repository(copy)
        build(copy, "gcc", FLAGS)
        unseen = unseen_mistakes(copy)
        for isa in ISAS:
            if isa not in calls.build_info()["available_isas"]:
                print(f"ThreadSanitizer: {isa}: skipped: this processor does not have it")
                continue
            printed, reports = run_under_sanitizer(
                copy, isa, list(CASES), "halt_on_error=0"
            )
            print(
                f"ThreadSanitizer: {isa}: {len(CASES)} kernels, {int(printed):,} calls "
                f"on {THREADS} threads, {len(reports)} reports"
            )
            print(*reports, sep="\n", end="\n" if reports else "", flush=True)
            bad += len(reports)
        os.chdir(ROOT)
    seen = [name for name in MISTAKES if name not in unseen]
    print(
        f"mistakes that were made and reported: {', '.join(seen)}; not: "
        f"{', '.join(unseen) or '-'}"
    )
    return int(bad > 0 or bool(unseen))


if __name__ == "__main__":
    sys.exit(main())
