"""A clock that a test advances: what is measured does not depend on the machine."""

import time

import pytest


class Clock:
    """Stands in for `time.perf_counter`, and moves on by a microsecond at each look.

    Args:
        patch: puts it there, and takes it away again.

    Attributes:
        now: seconds.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr(time, "perf_counter", self._look)

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def _look(self) -> float:
        self.now += 1e-6
        return self.now
