"""The calls of C functions that our engine makes, counted and timed."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any


@contextmanager
def counted_calls() -> Iterator[SimpleNamespace]:
    """Count and time the calls of C functions.

    The clock is read inside of a wrapper, whose own time counts as Python's: the share
    outside of C comes out a little too high, never too low.
    """
    from src.ml.kernels import lib

    calls = SimpleNamespace(count=0, seconds=0.0)
    clock = time.perf_counter

    class Timed:
        """Stands in for the C library; a function is wrapped when it is first asked
        for.
        """

        def __getattr__(self, name: str) -> Any:
            function = getattr(lib, name)

            def timed(*arguments: Any) -> Any:
                start = clock()
                result = function(*arguments)
                calls.seconds += clock() - start
                calls.count += 1
                return result

            value = timed if callable(function) else function
            setattr(self, name, value)
            return value

    ours = [
        module for name, module in list(sys.modules.items()) if name.startswith("src.")
    ]
    users = [module for module in ours if getattr(module, "lib", None) is lib]
    proxy = Timed()
    try:
        for module in users:
            setattr(module, "lib", proxy)  # noqa: B010 - a module has no typed attribute
        yield calls
    finally:
        for module in users:
            setattr(module, "lib", lib)  # noqa: B010
