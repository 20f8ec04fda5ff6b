"""Attacks on a server from outside, each with its own timing, as a list that one program
runs.

A module of this package has the attacks on one part of the server: functions with the
decorator `attack`, which take an empty directory, start servers there, and return a line
about what they measured. An AssertionError says that the server did not hold. All of them
talk to 127.0.0.1 only, and every loop has an end. `tests/hardening/test_attacks.py` runs
each attack as a test, `python -m tests.hardening.run_attacks` the whole list several
times under load.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Run = Callable[[Path], str]


@dataclass(frozen=True)
class Attack:
    """An attack.

    Attributes:
        row: Its number in the list of attacks.
        name: The name of its function.
        promise: How the server answers it, in one sentence.
        is_slow: Whether it takes more than a few seconds.
        run: Runs it in an empty directory; returns what was measured.
    """

    row: int
    name: str
    promise: str
    is_slow: bool
    run: Run


ATTACKS: list[Attack] = []


def attack(row: int, promise: str, is_slow: bool = False) -> Callable[[Run], Run]:
    """Adds a function to the list of attacks."""

    def add(run: Run) -> Run:
        ATTACKS.append(Attack(row, run.__name__, promise, is_slow, run))
        return run

    return add
