"""Two ranks of one thread beside one process of two: `python -m tests.bench.bench_ranks
DIR`.

Both answer the same prompt of DIR, by turns; the best run of each counts. Needs the `mpi`
extra.
"""

import json
import sys
from pathlib import Path

from tests.support.mpi import mpirun

RUNS = 3
PROMPT = "Tell me of the rivers, hills and towns between here and the sea. " * 14
FLAGS = (
    "--completion",
    "-p",
    PROMPT,
    "-n",
    "33",
    "--temperature",
    "0",
    "--json",
    "-q",
    "-c",
    "1024",
)


def rates(directory: Path, ranks: int, threads: int) -> tuple[float, float]:
    """Returns tokens per second of the prompt and of the answer."""
    ended = mpirun(
        ranks,
        sys.executable,
        "-m",
        "src.main",
        "-m",
        str(directory),
        "-t",
        str(threads),
        *FLAGS,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    passes = found["new_tokens"] - 1 - found["accepted_tokens"]
    return found["prompt_tokens"] / found["prefill_seconds"], passes / found[
        "decode_seconds"
    ]


def main() -> None:
    directory = Path(sys.argv[1])
    cases = {"1 rank x 2 threads": (1, 2), "2 ranks x 1 thread": (2, 1)}
    best = dict.fromkeys(cases, (0.0, 0.0))
    for _ in range(RUNS):
        for name, case in cases.items():
            found = rates(directory, *case)
            best[name] = (max(best[name][0], found[0]), max(best[name][1], found[1]))
            shown = f"prompt {found[0]:.1f} tokens/s, answer {found[1]:.2f} passes/s"
            print(f"{name}: {shown}", flush=True)
    one, two = best.values()
    print(f"2 ranks to 1: prompt {two[0] / one[0]:.2f}, answer {two[1] / one[1]:.2f}")


if __name__ == "__main__":
    main()
