"""What is timed of an engine, inside of its process."""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from .engines import ENGINES, OURS, Ours, Setup
from .processes import Served


class Timed:
    """Any of the engines, by its name."""

    def __init__(self, name: str, setup: Setup) -> None:
        self.engine = ENGINES[name](setup)

    def facts(self) -> dict[str, Any]:
        """Return versions and settings."""
        return self.engine.facts()

    def logits(self, prompt: list[int], steps: list[int]) -> Any:
        """Return the logits after a prompt and further tokens, run one by one."""
        self.engine.reset()
        result = self.engine.run(prompt) if prompt else None
        for token in steps:
            result = self.engine.run([token])
        return result

    def prefill_rate(self, ids: list[int]) -> float:
        """Return tokens per second of a prompt, from an empty cache to its last logits."""
        self.engine.reset()
        start = time.perf_counter()
        self.engine.run(ids)
        return len(ids) / (time.perf_counter() - start)

    def decode_rate(self, ids: list[int]) -> float:
        """Return steps per second, the median of the steps, from an empty cache on."""
        self.engine.reset()
        return 1 / statistics.median(seconds_of_each(self.engine.run, ids))


class TimedOurs(Timed):
    """llama-bolts, of which more is asked."""

    engine: Ours

    def __init__(self, setup: Setup) -> None:
        self.engine = Ours(setup)

    def decode_rate_at(self, position: int, ids: list[int]) -> float:
        """Return steps per second behind a filled cache."""
        self.engine.seek(position)
        return 1 / statistics.median(seconds_of_each(self.engine.run, ids))

    def chunk_rate_at(self, position: int, ids: list[int]) -> float:
        """Return chunks per second of a part of a prompt that starts at a position."""
        self.engine.seek(position)
        start = time.perf_counter()
        self.engine.run(ids)
        return 1 / (time.perf_counter() - start)

    def rows_rate(self, rows: int, count: int) -> float:
        """Return steps per second of a few rows with all their logits, as for a checked draft."""
        self.engine.reset()
        step = list(range(rows))
        times = seconds_of_each(lambda _: self.engine.run_all(step), list(range(count)))
        return 1 / statistics.median(times)

    def sampling_seconds(self, count: int = 30) -> float:
        """Return the median time to choose a token with the default settings."""
        from src.inference.sampling import Sampler, SamplingArgs

        sampler = Sampler(SamplingArgs(seed=1))
        logits = self.engine.run([0])
        times = seconds_of_each(lambda one: sampler.sample(logits, one[0]), list(range(count)))
        return statistics.median(times)

    def calls(self, ids: list[int]) -> dict[str, float]:
        """Return the C calls of a decode step, and the share of its time outside of them."""
        self.engine.reset()
        with CountedCalls() as calls:
            start = time.perf_counter()
            for token in ids:
                self.engine.run([token])
            wall = time.perf_counter() - start
        return {
            "calls_per_step": calls.count / len(ids),
            "share_outside": 1 - calls.seconds / wall,
            "microseconds_outside": 1e6 * (wall - calls.seconds) / len(ids),
        }


def serve(name: str, setup: Setup, isa: str | None = None) -> Served:
    """Start an engine in a process of its own; `isa` is the instruction set of ours."""
    environment = {"OMP_NUM_THREADS": str(setup.threads)}
    if name == OURS:
        forced = {"LLAMA_BOLTS_ISA": isa} if isa else {}
        return Served(TimedOurs, setup, environment=environment | forced)
    return Served(Timed, name, setup, environment=environment)


def seconds_of_each(run: Callable[[list[int]], Any], ids: list[int]) -> list[float]:
    """Time tokens one by one."""
    times = []
    for token in ids:
        start = time.perf_counter()
        run([token])
        times.append(time.perf_counter() - start)
    return times


class CountedCalls:
    """Counts and times the calls of C functions while it is entered.

    The clock is read inside of a wrapper, whose own time counts as Python's: the share outside of C
    comes out a little too high, never too low.
    """

    def __enter__(self) -> "CountedCalls":
        from src.ml import kernels

        self.count, self.seconds = 0, 0.0
        self._lib = kernels.lib
        self._replaced = [
            module for name, module in list(sys.modules.items())
            if name.startswith("src.") and getattr(module, "lib", None) is self._lib
        ]  # fmt: skip
        proxy = _Proxy(self, self._lib)
        for module in self._replaced:
            setattr(module, "lib", proxy)  # noqa: B010 - a module has no typed attribute
        return self

    def __exit__(self, *exception: object) -> None:
        for module in self._replaced:
            setattr(module, "lib", self._lib)  # noqa: B010


class _Proxy:
    """Stands in for the C library; a function is wrapped when it is first asked for."""

    def __init__(self, calls: CountedCalls, lib: Any) -> None:
        self._calls, self._wrapped_lib = calls, lib

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._wrapped_lib, name)
        if not callable(value):
            return value
        calls, clock = self._calls, time.perf_counter

        def timed(*arguments: Any) -> Any:
            start = clock()
            result = value(*arguments)
            calls.seconds += clock() - start
            calls.count += 1
            return result

        setattr(self, name, timed)
        return timed
