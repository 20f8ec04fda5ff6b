"""Run every attack on the server several times, while other processes compute.

`python -m tests.hardening.run_attacks --rounds 3` runs the list; `--rows 2 13` only these
rows, and `--load 0` without other processes. The exit code is 1 if the server did not
hold.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.hardening.attacks import ATTACKS, Attack, grammars, sharing, transport

MODULES = (transport, sharing, grammars)  # importing one fills the list
_COMPUTE = "import math\nwhile True: math.factorial(2000)"


def run(attack: Attack) -> bool:
    """Runs an attack and prints what came of it; returns whether the server held."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        try:
            line = attack.run(Path(directory))
            holds = True
        except AssertionError as error:
            line = f"FAILED: {error}"
            holds = False
    print(
        f"{attack.row:3} {attack.name}: {line} ({time.monotonic() - started:.0f} s)",
        flush=True,
    )
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="*", help="only these rows of the list")
    parser.add_argument(
        "--load", type=int, default=2, help="processes that compute meanwhile"
    )
    options = parser.parse_args()
    chosen = [
        each for each in ATTACKS if options.rows is None or each.row in options.rows
    ]
    load = [
        subprocess.Popen([sys.executable, "-c", _COMPUTE]) for _ in range(options.load)
    ]
    failures = 0
    try:
        for number in range(options.rounds):
            print(
                f"round {number + 1} of {options.rounds}, {options.load} processes "
                "compute"
            )
            failures += sum(not run(each) for each in chosen)
    finally:
        for process in load:
            process.kill()
            process.wait()
    print(f"{len(chosen)} attacks, {options.rounds} rounds: {failures} failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
