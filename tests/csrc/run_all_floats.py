"""Converts every float32 there is, all 2^32, on each path, and compares each bit.

    python -m tests.csrc.run_all_floats [path ...]

float32 -> bfloat16, float16, float8_e4m3fn and float8_e5m2 of all 2^32 patterns, and every
conversion of all 2^16 patterns of bfloat16 and float16, against `float_oracle.py`. All processors
work, each on its share of the patterns. Prints how many values were converted and how many came out
wrong, and ends with 0 if none did. Paths that this machine lacks are named and left out.
"""

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from . import calls
from .conftest import ISAS
from .float_oracle import LONG_PAIRS, SHORT_PAIRS, wrong_patterns

SHARE = 2**24
CHUNK = 2**16
SHOWN = 5
# What came out wrong, for each path and pair of types.
Wrong = dict[tuple[str, Any], list[str]]


def check_share(isas: tuple[str, ...], start: int) -> Wrong:
    """Convert the patterns [start, start + SHARE) on some paths; return what is wrong."""
    calls.set_num_threads(1)
    found: Wrong = {(isa, pair): [] for isa in isas for pair in LONG_PAIRS}
    for first in range(start, start + SHARE, CHUNK):
        patterns = np.arange(first, first + CHUNK, dtype=np.uint32)
        for pair in LONG_PAIRS:
            for isa, wrong in wrong_patterns(patterns, *pair, isas).items():
                found[isa, pair] += wrong
    return found


def check_all(isas: tuple[str, ...]) -> Wrong:
    """Convert everything on some paths, on all processors; return what is wrong."""
    found: Wrong = {}
    for pair in SHORT_PAIRS:
        patterns = np.arange(2**16, dtype=np.uint16)
        for isa, wrong in wrong_patterns(patterns, *pair, isas).items():
            found[isa, pair] = wrong
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        for share in pool.map(partial(check_share, isas), range(0, 2**32, SHARE)):
            for key, wrong in share.items():
                found[key] = found.get(key, []) + wrong
    return found


def main() -> int:
    """Check the paths that are asked for, or all; return 1 if a value was wrong."""
    wanted = sys.argv[1:] or ISAS
    isas = tuple(isa for isa in wanted if isa in calls.available_isas())
    for isa in wanted:
        if isa not in isas:
            print(f"{isa} left out: this machine or build does not have it", flush=True)
    begun = time.monotonic()
    found = check_all(isas)
    for (isa, (source, target)), wrong in sorted(
        found.items(), key=lambda item: isas.index(item[0][0])
    ):
        count = 2**32 if (source, target) in LONG_PAIRS else 2**16
        print(f"{isa:10} {source!s:8} -> {target!s:13} {count:13,} values  {len(wrong):,} wrong")
        print(*wrong[:SHOWN], sep="\n", end="\n" if wrong else "")
    total = sum(map(len, found.values()))
    print(f"all floats: {len(isas)} paths ({', '.join(isas)}), {total:,} values wrong, "
          f"{time.monotonic() - begun:.0f} s")  # fmt: skip
    return int(total > 0 or not isas)


if __name__ == "__main__":
    sys.exit(main())
