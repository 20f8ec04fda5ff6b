"""Runs every kernel on several threads under ThreadSanitizer, on each path.

    python -m tests.csrc.run_thread_sanitizer

Works in a copy of the repository, which it deletes. The threads of libgomp wait for one another in
a way that the sanitizer does not see, so the copy's kernels run their regions on pthreads
(`openmp_by_pthreads.c`), which it does. The sizes are those of `guard_cases.py` that reach several
blocks and threads, with all combinations of types, formats and operations. First mistakes are made
in kernels, one at a time, and each must be reported in its file. Nothing is suppressed. Prints for
each path the calls, the regions that ran on several threads, and the reports; ends with 0 if there
was none, and one of each mistake.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import calls
from .conftest import ISAS
from .guard_cases import CASES
from .guard_pages import Blocks, Note, watching
from .run_sanitizers import ROOT, build, copy_repository

THREADS = 3
FLAGS = [
    "-std=c11", "-O1", "-g1", "-fPIC", "-ffp-contract=off", "-fopenmp", "-fno-omit-frame-pointer",
    "-fsanitize=thread", "-DLLAMA_BOLTS_EMULATE_BF16",
]  # fmt: skip
RUNTIME = Path("tests/csrc/openmp_by_pthreads.c")
# Of a kernel, in its file: what is right, and what makes threads share what they must not.
MISTAKES = {
    # All threads keep their sums in the same scratch.
    "linear.c": ("&pass->scratch, thread_index())", "&pass->scratch, 0)"),
    "matmul.c": ("thread_index()", "0"),
    # States are merged while others are still made.
    "attention.c": (
        "schedule(dynamic, 1)\n        for (ptrdiff_t unit = 0; unit < K * plan->blocks",
        "schedule(dynamic, 1) nowait\n        for (ptrdiff_t unit = 0; unit < K * plan->blocks",
    ),
    # The spans of two threads overlap by an element.
    "elementwise.c": ("start += SPAN)", "start += SPAN - 1)"),
}


def run_cases(isa: str, names: list[str]) -> None:
    """Call kernels on several threads, and print as JSON the calls and the regions that ran."""
    calls.set_isa(isa)
    calls.set_num_threads(THREADS)
    memory = Blocks()
    with watching(memory, Note(None)) as watched:
        for name in names:
            for sizes in CASES[name].long:
                for variant in CASES[name].variants:
                    CASES[name].run(memory, *variant, *sizes)
                    memory.release()
    extension = ctypes.CDLL(str(next((ROOT / "src/ml").glob("_kernels*.so"))))
    regions = ctypes.c_long.in_dll(extension, "regions_of_many_threads").value
    print(json.dumps({"calls": sum(watched.calls.values()), "regions": regions}))


def run_under_sanitizer(
    copy: Path, isa: str, names: Sequence[str], options: str
) -> tuple[str, list[str]]:
    """Run cases in a program of its own; return what it printed, and the reports.

    Raises:
        RuntimeError: the program failed.
    """
    library = subprocess.run(
        ["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as directory:
        environment = os.environ | {
            "LD_PRELOAD": library,
            "PYTHONPATH": str(copy),
            "TSAN_OPTIONS": f"log_path={directory}/report:exitcode=0:{options}",
        }
        # Where addresses are too random for the sanitizer it would not start.
        command = [
            "setarch", "-R", sys.executable, "-m", "tests.csrc.run_thread_sanitizer", "--in-this",
            isa, *names,
        ]  # fmt: skip
        run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"{isa}: ended with {run.returncode}: {run.stderr}")
        texts = [path.read_text(errors="replace") for path in Path(directory).iterdir()]
    reports = [part for text in texts for part in text.split(f"{'=' * 18}\n") if part.strip()]
    return run.stdout, reports


def unseen_mistakes(copy: Path) -> list[str]:
    """Make each mistake in the copy, and take it back; return those that were not reported."""
    unseen = []
    for name, (right, wrong) in MISTAKES.items():
        source = copy / "csrc" / name
        text = source.read_text(encoding="utf-8")
        assert right in text, f"{name}: {right} is not there any more"
        source.write_text(text.replace(right, wrong), encoding="utf-8")
        build(copy, "gcc", FLAGS, [RUNTIME], [source.relative_to(copy)])
        kernel = {"matmul": "batched_matmul"}.get(source.stem, source.stem)
        _, reports = run_under_sanitizer(copy, "portable", [kernel], "halt_on_error=1")
        if not any("data race" in report and name in report for report in reports):
            unseen.append(name)
        source.write_text(text, encoding="utf-8")
        build(copy, "gcc", FLAGS, [RUNTIME], [source.relative_to(copy)])
    return unseen


def main() -> int:
    """Run all paths; return 1 if there was a report, or none of a mistake that was made."""
    if sys.argv[1:2] == ["--in-this"]:
        run_cases(sys.argv[2], sys.argv[3:])
        return 0
    bad = 0
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        copy_repository(copy)
        build(copy, "gcc", FLAGS, [RUNTIME])
        unseen = unseen_mistakes(copy)
        for isa in ISAS:
            printed, reports = run_under_sanitizer(copy, isa, list(CASES), "halt_on_error=0")
            counts = json.loads(printed)
            print(
                f"ThreadSanitizer: {isa}: {len(CASES)} kernels, {counts['calls']:,} calls, "
                f"{counts['regions']:,} regions on {THREADS} threads, {len(reports)} reports"
            )
            print(*reports, sep="\n", end="\n" if reports else "", flush=True)
            bad += len(reports)
        os.chdir(ROOT)
    seen = [name for name in MISTAKES if name not in unseen]
    print(
        f"mistakes that were made and reported: {', '.join(seen)}; not: {', '.join(unseen) or '-'}"
    )
    return int(bad > 0 or bool(unseen))


if __name__ == "__main__":
    sys.exit(main())
