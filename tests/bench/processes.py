"""Things to be timed, each in a process of its own, asked in turn: A B B A."""

import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from .engines import ENGINES, OURS, Setup

PAUSE = 0.02  # seconds before each timing: the threads of the others stop spinning
DRIFT = 0.05  # of a roofline, from before a measurement to after it


class Served:
    """What `make` returns in a process of its own; `ask` calls one of its methods.

    `make` can be pickled by name. The process has the variables of `environment` before
    it imports `make`, on top of this one's.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, end = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(end, make, arguments), daemon=True
        )
        # Unpickling `make` there may already read them.
        with mock.patch.dict(os.environ, environment or {}):
            self._process.start()
        end.close()  # so that its death is seen here as the end of the pipe
        self.ask("__class__")  # it is ready

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a method there and wait for its result."""
        self._pipe.send((name, arguments))
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            raise SystemExit(
                f"a measured process ended with {code}: nothing is reported"
            ) from None

    @property
    def process_id(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def _serve(pipe: Connection, make: Callable[..., Any], arguments: Sequence[Any]) -> None:
    served = make(*arguments)
    while True:
        try:
            name, parts = pipe.recv()
        except EOFError:
            return
        pipe.send(None if name == "__class__" else getattr(served, name)(*parts))


def serve(name: str, setup: Setup, isa: str | None = None) -> Served:
    """Start an engine in a process of its own; `isa` is the instruction set of ours."""
    environment = {"OMP_NUM_THREADS": str(setup.threads)}
    if name == OURS and isa:
        environment["LLAMA_BOLTS_ISA"] = isa
    return Served(ENGINES[name], setup, environment=environment)


@dataclass
class Rounds:
    """Numbers of several participants, one of each per round, and the drift of the
    roofline.

    They are rates, or of a single participant in a unit.
    """

    rates: dict[str, list[float]] = field(default_factory=dict)
    roofline_before: float = 0.0
    roofline_after: float = 0.0
    attempts: int = 1
    unit: str = "per s"

    @property
    def drift(self) -> float:
        """Return by how much the roofline changed."""
        if not self.roofline_before:
            return 0.0
        return abs(self.roofline_after / self.roofline_before - 1)

    def rate(self, name: str) -> float:
        return statistics.median(self.rates[name])

    def ratio(self, name: str, other: str) -> tuple[float, float, float]:
        """Return the median of the ratios within each round,
        the least and the greatest.
        """
        pairs = zip(self.rates[name], self.rates[other], strict=True)
        ratios = [one / two for one, two in pairs]
        return statistics.median(ratios), min(ratios), max(ratios)

    def record(self) -> dict[str, Any]:
        before = self.roofline_before
        after = self.roofline_after
        roofline = {"before": before, "after": after, "drift": self.drift}
        about = {"roofline": roofline, "attempts": self.attempts, "unit": self.unit}
        return {"rates": self.rates, **about}


def values(numbers: list[float], unit: str) -> Rounds:
    """Give the repetitions of one measure that is no rate."""
    return Rounds({"value": numbers}, unit=unit)


def asked(served: Mapping[str, Served], *what: Any) -> dict[str, Callable[[], float]]:
    """Give what asks each of several processes for the same."""
    return {name: partial(one.ask, *what) for name, one in served.items()}


def interleave(
    participants: Mapping[str, Callable[[], float]],
    pairs: int,
    probe: Callable[[], float] | None = None,
    repeats: int = 0,
) -> Rounds:
    """Take a rate of all participants once per round, in turned order every other round.

    `probe` measures the roofline before and after. Where it has drifted, all starts
    again, at most `repeats` times; the steadiest attempt counts.
    """
    best: Rounds | None = None
    for attempt in range(1, repeats + 2):
        rounds = Rounds({name: [] for name in participants}, probe() if probe else 0.0)
        for number in range(pairs):
            order = list(participants)
            for name in order if number % 2 == 0 else order[::-1]:
                time.sleep(PAUSE)
                rounds.rates[name].append(participants[name]())
        rounds.roofline_after = probe() if probe else 0.0
        best = rounds if best is None or rounds.drift < best.drift else best
        best.attempts = attempt
        if best.drift <= DRIFT:
            break
    assert best is not None
    return best


def machine() -> dict[str, Any]:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [
        line.split(":", 1)[1].strip()
        for line in text.splitlines()
        if "model name" in line
    ]
    return {
        "processor": models[0] if models else platform.processor(),
        "processors": len(models),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def print_rounds(title: str, result: Rounds) -> None:
    first, *others = result.rates
    if not others:
        least = min(result.rates[first])
        greatest = max(result.rates[first])
        shown = f"{result.rate(first):.4g} {result.unit} ({least:.4g} to {greatest:.4g})"
        print(f"\n{title}: {shown}", flush=True)
        return
    unsteady = "" if result.drift <= DRIFT else f", after {result.attempts} attempts"
    print(f"\n{title}  (the roofline drifted by {100 * result.drift:.1f} %{unsteady})")
    for name in result.rates:
        median, least, greatest = result.ratio(first, name)
        print(
            f"  {name:14s} {result.rate(name):10.3f} {result.unit}   "
            f"{first} is {median:6.3f} x this ({least:.3f} to {greatest:.3f})",
            flush=True,
        )
