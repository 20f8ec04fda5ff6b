"""Fuzz one parser: `python -m tests.hardening.fuzz.run TARGET --inputs N --seconds N
--seed S`.

Two engines make inputs. `mutation` makes changes to valid inputs, fast. `branches` is
atheris (the extra `fuzz`): it keeps what reaches new branches and goes on from there, a
tenth as fast. An input that ends in anything but a declared refusal, or takes too long,
is kept in a file and ends the run.
"""

import argparse
import gc
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.hardening.fuzz.bed import Bed, Target, hangs_are_noticed
from tests.hardening.fuzz.mutation import MOST_BYTES, Mutator
from tests.hardening.fuzz.targets import TARGETS

SECONDS_PER_LED = 2  # of atheris, which counts its own work too
MOST_MIB = 2048  # of the whole process, atheris and its corpus included
BATCH = 1000
_EXECUTED = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


def main() -> int:
    """Fuzz, print a row of the ledger, and return 1 if there was a finding."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hardening.fuzz.run", description=__doc__
    )
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--engine", choices=("mutation", "branches"), default="mutation")
    parser.add_argument("--inputs", type=int, default=1 << 62, help="stop after so many")
    parser.add_argument("--seconds", type=int, default=60, help="stop after so long")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    fuzz = fuzz_by_mutation if arguments.engine == "mutation" else fuzz_by_branches
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=7", "--dirty=+"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    version = done.stdout.strip() or "unknown"  # with `+` where files were changed
    # Each input is a file for a moment: in memory, where there is a folder for that.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=memory, prefix="f") as name:
        count, finding = fuzz(TARGETS[arguments.target], Path(name), arguments)
    seconds = round(time.monotonic() - started)
    cells = (version, arguments.target, arguments.engine, arguments.seed, seconds, count)
    print("| " + " | ".join(map(str, (*cells, finding or "none"))) + " |", flush=True)
    return 1 if finding else 0


def findings_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / "llama-bolts-findings"
    folder.mkdir(exist_ok=True)
    return folder


def fuzz_by_mutation(
    target: Target, folder: Path, arguments: argparse.Namespace
) -> tuple[int, str]:
    """Read changed inputs; return their number and where the finding is, if any."""
    os.chdir(folder)  # the shorter the path in every refusal, the faster
    bed = Bed(target, Path())
    mutator = Mutator(target.name, bed.starts, arguments.seed)
    end = time.monotonic() + arguments.seconds
    gc.freeze()
    with hangs_are_noticed(bed):
        while bed.count < arguments.inputs and time.monotonic() < end:
            try:
                for _ in range(min(BATCH, arguments.inputs - bed.count)):
                    data = mutator.next()
                    bed.read(data)
            except Exception:  # noqa: BLE001 - every undeclared exception is what is looked for
                traceback.print_exc()
                kept = findings_folder() / f"{target.name}-{arguments.seed}-{bed.count}"
                kept.write_bytes(data)
                return bed.count, str(kept)
    return bed.count, ""


def fuzz_by_branches(
    target: Target, folder: Path, arguments: argparse.Namespace
) -> tuple[int, str]:
    """Run atheris in a process of its own, which it ends itself,
    and read its last words.
    """
    corpus = folder / "corpus"
    scratch = folder / "scratch"
    corpus.mkdir()
    scratch.mkdir()
    for number, data in enumerate(set(Bed(target, scratch).starts)):
        (corpus / str(number)).write_bytes(data)
    kept = findings_folder() / f"{target.name}-{arguments.seed}-"
    command = [
        sys.executable,
        "-m",
        "tests.hardening.fuzz.led_by_branches",
        target.name,
        str(scratch),
        str(corpus),
        f"-max_total_time={arguments.seconds}",
        f"-runs={min(arguments.inputs, (1 << 31) - 1)}",
        f"-seed={arguments.seed}",
        f"-max_len={MOST_BYTES}",
        f"-timeout={SECONDS_PER_LED}",
        f"-rss_limit_mb={MOST_MIB}",
        f"-artifact_prefix={kept}",
        "-print_final_stats=1",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False
    )
    found = _EXECUTED.search(done.stderr)
    if done.returncode or not found:
        print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr)
    count = int(found[1]) if found else 0
    return count, "" if found and not done.returncode else f"{kept}*"


if __name__ == "__main__":
    sys.exit(main())
