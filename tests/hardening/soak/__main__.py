"""Chat for a million tokens and print what the process holds: `python -m tests.hardening.soak`."""

import argparse
import sys

from tests.hardening.soak.run import Soak, soak

# Bytes: pages that the allocators of Python and C keep for themselves, and the scratch memory of
# the kernels, which is as large as the largest product so far has needed.
_MOST_GROWTH = 4 << 20
_MOST_SCRATCH = 1 << 20


def report(result: Soak) -> None:
    print("| tokens | seconds | resident KiB | native bytes | descriptors | mapped | threads |")
    print("|---|---|---|---|---|---|---|")
    for reading in result.readings:
        held = reading.held
        print(
            f"| {reading.tokens} | {reading.seconds:.0f} | {held.resident >> 10} | {held.native} "
            f"| {held.descriptors} | {held.files} | {held.threads} |"
        )
    drift = result.drift
    print(
        f"drift: {drift.resident / 1024:+.0f} KiB resident, {drift.native:+d} native bytes, "
        f"{drift.descriptors:+d} descriptors, {drift.files:+d} mapped files, "
        f"{drift.threads:+d} threads"
    )
    print("; ".join(f"{name}: {count}" for name, count in sorted(result.events.items())))
    print(f"the same question: {'the same answer' if result.same_answers else 'another answer'}")


def has_grown(result: Soak) -> bool:
    """Tells whether anything is left behind, or more memory than allocators keep for themselves."""
    drift = result.drift
    counts = (drift.descriptors, drift.files, drift.threads)
    return drift.resident > _MOST_GROWTH or drift.native > _MOST_SCRATCH or max(counts) > 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hardening.soak", description=__doc__)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--intervals", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    result = soak(options.tokens, options.intervals, options.seed)
    report(result)
    return int(has_grown(result) or not result.same_answers)


if __name__ == "__main__":
    sys.exit(main())
