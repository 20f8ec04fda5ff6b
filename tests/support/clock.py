"""A clock that a test advances: what is measured does not depend on the machine."""

import time

import pytest


class Clock:
    """Replaces `time.perf_counter`, in seconds, and moves on by a microsecond at each
    look.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr(time, "perf_counter", self._look)

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def _look(self) -> float:
        self.now += 1e-6
        return self.now
