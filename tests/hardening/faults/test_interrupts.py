"""SIGINT from outside: a sample of `run_interrupts`, and what it takes for a bad end."""

import signal
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import REPOSITORY
from tests.hardening.faults import run_interrupts
from tests.hardening.faults.run_interrupts import ended_with, outcome_of

OF_THE_START = """Traceback (most recent call last):
  File "<frozen runpy>", line 189, in _run_module_as_main
  File "/home/me/src/main.py", line 5, in <module>
    import sys
KeyboardInterrupt
"""
OF_MAIN = """Traceback (most recent call last):
  File "/home/me/src/main.py", line 30, in main
    options = parse_arguments(arguments)
KeyboardInterrupt
"""


@pytest.mark.parametrize(
    ("end", "notes", "may_be_done", "outcome"),
    [
        (None, "", True, "lost"),
        ((130, 1.5), "", True, "late"),
        ((130, 0.1), "a loading line\n", False, "exit code 130"),
        ((-signal.SIGINT, 0.1), "", False, "ended by SIGINT itself, silently"),
        (
            (-signal.SIGINT, 0.1),
            OF_THE_START,
            True,
            "traceback of Python's own start, before main",
        ),
        ((1, 0.1), OF_MAIN, True, "traceback"),
        ((0, 0.1), "Exception ignored in: <module 'threading'>", True, "traceback"),
        ((0, 0.1), "", True, "done before it"),
        ((0, 0.1), "", False, "wrong"),
        ((1, 0.1), "", True, "wrong"),
    ],
)
def test_each_end_has_its_name(
    end: tuple[int, float] | None, notes: str, may_be_done: bool, outcome: str
) -> None:
    assert outcome_of(end, notes, may_be_done=may_be_done) == outcome


@pytest.mark.parametrize(
    ("handler", "code"), [("SIG_IGN", None), ("SIG_DFL", -signal.SIGINT)]
)
def test_a_process_that_does_not_hear_it_is_noticed(
    monkeypatch: pytest.MonkeyPatch, handler: str, code: int | None
) -> None:
    if code is None:
        monkeypatch.setattr(run_interrupts, "SECONDS_TO_GIVE_UP", 0.5)
    program = f"""
import signal, sys, time
signal.signal(signal.SIGINT, signal.{handler})
print("here", flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        begun = time.monotonic()
        end = ended_with(child.pid)
        assert (end and end[0]) == code
        assert time.monotonic() - begun < 30
        child.returncode = 0  # it was waited for already


@pytest.mark.slow
def test_no_sigint_is_lost_or_late_in_a_sample_of_answers_and_moments() -> None:
    command = [sys.executable, "-m", "tests.hardening.faults.run_interrupts"]
    done = subprocess.run(
        [*command, "--answers", "30", "--moments", "12"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
