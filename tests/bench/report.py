"""Tables of a run for people, and its rows for docs/PERFORMANCE.md."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .engines import LLAMA_CPP, OURS, TRANSFORMERS
from .measures import ROOFLINE, Value
from .processes import DRIFT, Rounds

Results = Mapping[str, Rounds | Value]
Found = tuple[float, float, float]  # median, least, greatest


def machine() -> dict[str, Any]:
    """Describe the processor and the system."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return {
        "processor": models[0] if models else platform.processor(), "processors": len(models),
        "system": platform.platform(), "python": platform.python_version(),
    }  # fmt: skip


def print_rounds(title: str, result: Rounds | Value) -> None:
    """Print one result: a line, or a line for each participant."""
    if isinstance(result, Value):
        spread = f"({result.least:.4g} to {result.greatest:.4g})"
        print(f"\n{title}: {result.median:.4g} {result.unit} {spread}", flush=True)
        return
    unsteady = "" if result.drift <= DRIFT else f", after {result.attempts} attempts"
    print(f"\n{title}  (the roofline drifted by {100 * result.drift:.1f} %{unsteady})")
    first = next(iter(result.rates))
    for name in result.rates:
        median, least, greatest = result.ratio(first, name)
        print(
            f"  {name:14s} {result.rate(name):10.3f} per s   "
            f"{first} is {median:6.3f} x this ({least:.3f} to {greatest:.3f})",
            flush=True,
        )


@dataclass(frozen=True)
class Goal:
    """A line of the table of goals: of what measure its number is, and what it is to be."""

    what: str
    title: str  # of a value, or of rounds
    pair: tuple[str, str] | None  # two participants of rounds, whose ratio it is
    bound: float
    at_least: bool = True
    unit: str = ""

    def find(self, results: Results) -> Found | None:
        """Return its number; None where it was not measured."""
        result = results.get(self.title)
        if isinstance(result, Value):
            return result.median, result.least, result.greatest
        if result is None or self.pair is None or not set(self.pair) <= set(result.rates):
            return None
        return result.ratio(*self.pair)


GOALS = [
    Goal("decode over the memory bandwidth", "decode", (OURS, ROOFLINE), 0.95),
    Goal("decode over llama.cpp", "decode", (OURS, LLAMA_CPP), 1.0),
    Goal("decode over transformers", "decode", (OURS, TRANSFORMERS), 2.5),
    Goal("prefill 512 over the peak", "prefill 512", (OURS, ROOFLINE), 0.85),
    Goal("prefill 512 over transformers", "prefill 512", (OURS, TRANSFORMERS), 1.1),
    Goal("prefill 512 over llama.cpp", "prefill 512", (OURS, LLAMA_CPP), 1.6),
    Goal("prefill 22 over llama.cpp", "prefill 22", (OURS, LLAMA_CPP), 1.4),
    Goal("prefill 22 over transformers", "prefill 22", (OURS, TRANSFORMERS), 2.0),
    Goal("a step of 4 rows over 1", "steps of rows", ("1 rows", "4 rows"), 1.05, False),
    Goal("a step of 8 rows over 1", "steps of rows", ("1 rows", "8 rows"), 1.15, False),
    *(
        Goal(f"{title} over the peak", title, ("attention", ROOFLINE), 0.45)
        for title in ("attention at 4096", "attention at 8192")
    ),
    Goal("decode at 8192 over empty", "decode in context", ("at 8192", "at 0"), 0.83),
    Goal("tiny model", "tiny model", None, 2000.0, True, "tokens/s"),
    Goal("Python and dispatch", "Python and dispatch", None, 0.03, False),
    Goal("sampling over the vocabulary", "sampling", None, 1.0, False, "ms"),
    Goal("process start to ready", "start to ready", None, 0.8, False, "s"),
    *(
        Goal(f"anonymous {title}", title, None, 150.0, False, "MB")
        for title in ("memory above the cache at 4096", "memory above the cache at 8192")
    ),
]
# Of a slower instruction set than the machine has, against its own multiply-adds.
FORCED_GOALS = [
    Goal("decode over the memory bandwidth", "decode", (OURS, ROOFLINE), 0.9),
    Goal("prefill 512 over the peak", "prefill 512", (OURS, ROOFLINE), 0.45),
]


def goal_rows(results: Results, goals: Sequence[Goal] = GOALS) -> list[str]:
    """Return the rows of the goals that this run says something about, in Markdown."""
    rows = ["| what | goal | measured | range | |", "|---|---|---|---|---|"]
    for goal in goals:
        found = goal.find(results)
        if found is None:
            continue
        median, least, greatest = found
        met = median >= goal.bound if goal.at_least else median <= goal.bound
        sign, unit = ">=" if goal.at_least else "<=", f" {goal.unit}" if goal.unit else ""
        rows.append(
            f"| {goal.what} | {sign} {goal.bound:g}{unit} | {median:.4g}{unit} | "
            f"{least:.4g} - {greatest:.4g} | {'met' if met else 'not met'} |"
        )
    return rows
