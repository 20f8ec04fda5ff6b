"""A short run of random calls of `ml`, and what the program itself promises."""

import signal

from tests.hardening.fuzz import random_calls


def test_random_calls_give_results_or_errors_of_the_package():
    assert random_calls.run(calls=3000, seed=20) == []


def test_a_call_depends_on_its_seed_and_number_alone(monkeypatch):
    texts = []
    for seed, number in ((1, 7), (1, 7), (1, 8), (2, 7)):
        caller = random_calls.Caller(seed, number)
        monkeypatch.setattr(random_calls, "_shown", repr)
        try:
            caller.run()
        except Exception as error:  # noqa: BLE001 (also what a finding is)
            texts.append(f"{caller.text} {error}")
        else:
            texts.append(caller.text)
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


CHILD = f"""
import os
from tests.hardening.fuzz import random_calls

def run(caller):
    if caller.number == 3:
        os.kill(os.getpid(), {signal.SIGSEGV:d})
    if caller.number == 5:
        raise ZeroDivisionError("five")

random_calls.Caller.run = run
random_calls.main()
"""


def test_signals_and_undeclared_exceptions_are_reported(monkeypatch):
    monkeypatch.setattr(random_calls, "CHILD", ("-c", CHILD))
    segfault, exception = random_calls.run(calls=8, seed=1)
    assert segfault.startswith(f"finding 3 exit code {-signal.SIGSEGV}")
    assert exception.startswith("finding 5 ZeroDivisionError at <string>:")
