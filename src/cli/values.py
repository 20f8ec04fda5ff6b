"""Reading numbers that a person typed; flags and `/set` share it."""

import argparse
import math


def integer(text: str) -> int:
    """Return a whole number.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number: got {text}") from None


def positive_integer(text: str) -> int:
    """Return a whole number of at least 1.

    Raises:
        ArgumentTypeError: it is none.
    """
    value = integer(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1: got {text}")
    return value


def ranges(text: str) -> tuple[range, ...]:
    """Return numbers and ranges, such as `0,3-5`, both ends included.

    Raises:
        ArgumentTypeError: a part is neither a whole number nor a range of them.
    """
    found = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise argparse.ArgumentTypeError(f"must be numbers and ranges like 0,3-5: got {text}")
        start, end = integer(first), integer(last if dash else first)
        if end < start:
            raise argparse.ArgumentTypeError(f"must be a range from low to high: got {part}")
        found.append(range(start, end + 1))
    return tuple(found)


def number(text: str) -> float:
    """Return a number.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number: got {text}") from None


def positive_number(text: str) -> float:
    """Return a finite number above 0.

    Raises:
        ArgumentTypeError: it is none.
    """
    value = number(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a finite number above 0: got {text}")
    return value
