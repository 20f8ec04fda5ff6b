"""Fuzz one parser: `python -m tests.fuzz.run TARGET --seconds N --seed S`.

With atheris (the extra `fuzz`) inputs are led by the branches that they reach; without it they are
valid inputs with a few changes. Both make their changes by `mutation.py`. An input that ends in
anything but a declared refusal, or takes too long, is kept in a file and ends the run.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz.bounds import run_bounded
from tests.fuzz.mutation import MOST_BYTES, Mutator
from tests.fuzz.targets import TARGETS, Target, prepare, seeds

SECONDS_PER_LED = 2  # of atheris, which counts its own work too
MOST_MIB = 2048  # of the whole process, atheris and its corpus included
_EXECUTED = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


def main() -> int:
    """Fuzz, print a row of the ledger, and return 1 if there was a finding."""
    arguments = parse_arguments()
    target = TARGETS[arguments.target]
    has_atheris = importlib.util.find_spec("atheris") is not None
    fuzz = fuzz_with_atheris if has_atheris else fuzz_by_mutation
    with tempfile.TemporaryDirectory(dir=memory_folder()) as name:
        inputs, finding = fuzz(target, Path(name), arguments.seconds, arguments.seed)
    engine = "atheris" if has_atheris else "mutation"
    cells = (target.name, engine, arguments.seed, arguments.seconds, inputs, finding or "none")
    print("| " + " | ".join(map(str, cells)) + " |")
    return 1 if finding else 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def memory_folder() -> str | None:
    """Give a folder in memory where there is one: each input is a file for a moment."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def findings_folder() -> Path:
    """Give the folder that inputs are kept in which are findings."""
    folder = Path(tempfile.gettempdir()) / "llama-bolts-findings"
    folder.mkdir(exist_ok=True)
    return folder


def fuzz_by_mutation(target: Target, folder: Path, seconds: int, seed: int) -> tuple[int, str]:
    """Run changed inputs for a time; return their number and where the finding is, if any."""
    prepare(target, folder)
    mutator = Mutator(target.name, seeds(target, folder), seed)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = mutator.next()
        count += 1
        try:
            run_bounded(target, data, folder)
        except Exception:  # noqa: BLE001 - every undeclared exception is what is looked for
            traceback.print_exc()
            kept = findings_folder() / f"{target.name}-{seed}-{count}"
            kept.write_bytes(data)
            return count, str(kept)
    return count, ""


def fuzz_with_atheris(target: Target, folder: Path, seconds: int, seed: int) -> tuple[int, str]:
    """Run atheris in a process of its own, which it ends itself, and read its last words."""
    corpus, scratch = folder / "corpus", folder / "scratch"
    corpus.mkdir()
    scratch.mkdir()
    for number, data in enumerate(seeds(target, scratch)):
        (corpus / str(number)).write_bytes(data)
    kept = findings_folder() / f"{target.name}-{seed}-"
    command = [
        sys.executable, "-m", "tests.fuzz.led_by_branches", target.name, str(scratch), str(corpus),
        f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={MOST_BYTES}",
        f"-timeout={SECONDS_PER_LED}", f"-rss_limit_mb={MOST_MIB}", f"-artifact_prefix={kept}",
        "-print_final_stats=1",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = _EXECUTED.search(done.stderr)
    if done.returncode or not found:
        print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr)
    count = int(found[1]) if found else 0
    return count, "" if found and not done.returncode else f"{kept}*"


if __name__ == "__main__":
    sys.exit(main())
