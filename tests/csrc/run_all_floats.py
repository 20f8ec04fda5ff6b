"""Converts every float32 there is, all 2^32, on each path, and compares each bit.

    python -m tests.csrc.run_all_floats

float32 -> bfloat16, float16, float8_e4m3fn and float8_e5m2 of all 2^32 patterns, and
every conversion of all 2^16 patterns of bfloat16 and float16, against `float_oracle.py`.
All processors work, each on its share of the patterns. Prints how many values were
converted and how many came out wrong, and ends with 0 if none did. Paths that this
machine lacks are named and left out.
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
from .float_oracle import BITS, LONG_PAIRS, SHORT_PAIRS, wrong_patterns

SHARE = 2**24
CHUNK = 2**16
SHOWN = 5
# Types, and the first pattern of a share; and what came out wrong of it, for each path.
Share = tuple[Any, int]
SHARES: list[Share] = [(pair, 0) for pair in SHORT_PAIRS]
SHARES += [(pair, start) for pair in LONG_PAIRS for start in range(0, 2**32, SHARE)]
Wrong = dict[str, list[str]]


def check_share(isas: tuple[str, ...], share: Share) -> Wrong:
    """Convert the patterns of a share, all of a short type, on some paths; return what is
    wrong.
    """
    pair, start = share
    calls.set_num_threads(1)
    found: Wrong = {isa: [] for isa in isas}
    for first in range(start, start + (SHARE if pair in LONG_PAIRS else CHUNK), CHUNK):
        patterns = np.arange(first, first + CHUNK, dtype=BITS[pair[0].itemsize])
        for isa, wrong in wrong_patterns(patterns, *pair, isas).items():
            found[isa] += wrong
    return found


def main() -> int:
    """Check all paths; return 1 if a value was wrong."""
    isas = calls.available_isas()
    for isa in {*ISAS} - {*isas}:
        print(f"{isa} left out: this machine or build does not have it", flush=True)
    begun = time.monotonic()
    context = multiprocessing.get_context("spawn")
    found: dict[tuple[str, Any], list[str]] = {}
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        for (pair, _), of_share in zip(
            SHARES, pool.map(partial(check_share, isas), SHARES), strict=True
        ):
            for isa, wrong in of_share.items():
                found.setdefault((isa, pair), []).extend(wrong)
    for (isa, pair), wrong in found.items():
        count = 2**32 if pair in LONG_PAIRS else 2**16
        print(
            f"{isa:10} {pair[0]!s:8} -> {pair[1]!s:13} {count:13,} values  "
            f"{len(wrong):,} wrong"
        )
        print(*wrong[:SHOWN], sep="\n", end="\n" if wrong else "")
    total = sum(map(len, found.values()))
    print(f"all floats: {len(isas)} paths ({', '.join(isas)}), {total:,} values wrong, "
          f"{time.monotonic() - begun:.0f} s")  # fmt: skip
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
