"""Converts every float32 there is, all 2^32, on each path, and compares each bit.

    python -m tests.csrc.run_all_floats [path ...]

float32 -> bfloat16 and float32 -> float16 of all 2^32 patterns, and every conversion of all 2^16
patterns of bfloat16 and float16, against `float_oracle.py`. All processors work, each on its share
of the patterns. Prints how many values were converted and how many came out wrong, and ends with 0
if none did. Paths that this machine lacks are named and left out.
"""

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from src.ml import native

from .conftest import ISAS
from .float_oracle import LONG_PAIRS, SHORT_PAIRS, wrong_patterns

SHARE = 2**24
CHUNK = 2**18
SHOWN = 5


def take_path(isa: str) -> None:
    """Set a working process up; each uses one thread, as there is one for each processor."""
    native.set_isa(isa)
    native.set_num_threads(1)


def check_share(start: int) -> list[list[str]]:
    """Convert the patterns [start, start + SHARE); return what is wrong, for each pair."""
    found: list[list[str]] = [[] for _ in LONG_PAIRS]
    for first in range(start, start + SHARE, CHUNK):
        patterns = np.arange(first, first + CHUNK, dtype=np.uint32)
        for wrong, (source, target) in zip(found, LONG_PAIRS, strict=True):
            wrong += wrong_patterns(patterns, source, target)
    return found


def check_path(isa: str) -> int:
    """Convert everything on one path, print a line for each conversion; return the mismatches."""
    begun = time.monotonic()
    take_path(isa)
    results = {}
    short = np.arange(2**16, dtype=np.uint16)
    for source, target in SHORT_PAIRS:
        results[source, target] = (2**16, wrong_patterns(short, source, target))
    context = multiprocessing.get_context("spawn")
    shares = range(0, 2**32, SHARE)
    with ProcessPoolExecutor(os.cpu_count(), context, take_path, (isa,)) as pool:
        found = list(pool.map(check_share, shares))
    for i, pair in enumerate(LONG_PAIRS):
        results[pair] = (2**32, [text for share in found for text in share[i]])
    for (source, target), (count, wrong) in results.items():
        print(f"{isa:12} {source!s:9} -> {target!s:9} {count:13,} values  {len(wrong):,} wrong")
        print(*wrong[:SHOWN], sep="\n", end="\n" if wrong else "")
    print(f"{isa:12} {time.monotonic() - begun:.0f} s", flush=True)
    return sum(len(wrong) for _, wrong in results.values())


def main() -> int:
    """Check the paths that are asked for, or all; return 1 if a value was wrong."""
    wanted = sys.argv[1:] or ISAS
    here = [isa for isa in wanted if isa in native.available_isas()]
    for isa in wanted:
        if isa not in here:
            print(f"{isa:12} left out: this machine or build has no {isa}")
    wrong = sum([check_path(isa) for isa in here])
    print(f"all floats: {len(here)} paths, {wrong:,} values wrong")
    return int(wrong > 0 or not here)


if __name__ == "__main__":
    sys.exit(main())
