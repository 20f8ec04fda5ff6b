"""Timings are taken in turns, and what goes wrong in a process is said."""

import os

import pytest

from tests.bench import processes
from tests.bench.processes import Served, interleave

VARIABLE = "LLAMA_BOLTS_BENCH_TEST"
AT_IMPORT = os.environ.get(VARIABLE)


class Counter:
    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, number: int) -> int:
        self.value += number
        return self.value

    def variable(self) -> tuple[str | None, str | None]:
        return AT_IMPORT, os.environ.get(VARIABLE)

    def die(self) -> None:
        os._exit(3)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PAUSE", 0)


def test_a_process_has_its_variables_before_its_imports_and_a_state_until_its_death_ends_the_run():
    served = Served(Counter, 5, environment={VARIABLE: "set"})
    assert VARIABLE not in os.environ
    assert served.ask("variable") == ("set", "set")
    assert [served.ask("add", 2), served.ask("add", 3)] == [7, 10]
    with pytest.raises(SystemExit, match="ended with 3"):
        served.ask("die")


def test_the_order_turns_every_other_round() -> None:
    order: list[str] = []
    participants = {
        name: (lambda name=name: order.append(name) or 1.0)  # type: ignore[func-returns-value]
        for name in "AB"
    }
    interleave(participants, 4)
    assert "".join(order) == "ABBAABBA"


def test_a_ratio_is_the_median_of_those_within_each_round() -> None:
    rounds = processes.Rounds({"A": [9.0, 22.0, 10.0], "B": [10.0, 20.0, 5.0]})
    assert rounds.ratio("A", "B") == (1.1, 0.9, 2.0)


def test_a_measure_whose_roof_drifts_is_repeated_and_the_steadiest_counts() -> None:
    probes = iter([1.0, 1.5, 1.0, 1.2, 1.0, 1.3])
    numbers = iter([1.0, 2.0, 3.0])
    rounds = interleave({"A": lambda: next(numbers)}, 1, lambda: next(probes), repeats=2)
    assert (rounds.rates, rounds.attempts) == ({"A": [2.0]}, 3)
    assert rounds.drift == pytest.approx(0.2)
