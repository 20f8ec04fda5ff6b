"""Sends SIGINT to the program, in the first 100 ms of answers and at random times of its
life.

    python -m tests.hardening.faults.run_interrupts [--answers N] [--moments N] [--seed N]

Two thirds of the answers belong to runs with one prompt, whose loading line says that the
answer begins; one third belongs to chats in a pseudo-terminal. The model never ends an
answer, so that a lost SIGINT is one after which the process goes on. The random times lie
between the start of `python -m src.main` with one prompt and its end. Seconds are those
in which the main thread runs or sleeps: on a busy machine it also waits for a processor.
Prints what came of each signal; ends with 0 if none was lost or late, and none gave a
traceback once `main` ran.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pexpect

from tests.cli.conftest import (
    ALPHABET,
    EDITOR_ENDS,
    PROGRAM,
    REPOSITORY,
    environment,
    start_program,
)
from tests.cli.reciting_model import write_reciting_directory

FIRST_SECONDS = 0.1  # of an answer
SECONDS_TO_STOP = 1.0
SECONDS_TO_GIVE_UP = 20.0
ANSWERS_OF_A_CHAT = 100
CHAT_PROMPT = ">>>"
STOPPED = "stopped; /continue goes on"
BEFORE_THE_ANSWER = "back at the prompt, before the answer began"
# A short prompt, and one whose reading takes most of the first 100 ms.
PROMPTS = ("Hello", "a long text " * 400)
TERMINALS = ("dumb", "xterm-256color")
BAD = ("lost", "late", "traceback", "wrong")

Outcomes = Counter[str]


def stopwatch(process: int) -> Callable[[], float]:
    """Return what tells the seconds since now in which a process did not wait for a
    processor.
    """
    schedule = Path(f"/proc/{process}/schedstat")

    def now() -> float:
        return time.monotonic() - int(schedule.read_text("ascii").split()[1]) / 1e9

    begun = now()
    return lambda: now() - begun


def ended_with(process: int) -> tuple[int, float] | None:
    """Send SIGINT, wait for the end; return exit code and seconds,
    None where it goes on.
    """
    seconds = stopwatch(process)
    os.kill(process, signal.SIGINT)
    give_up = time.monotonic() + SECONDS_TO_GIVE_UP
    while time.monotonic() < give_up:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            took = seconds()
            return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), took
        time.sleep(0.0005)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def outcome_of(end: tuple[int, float] | None, notes: str, *, may_be_done: bool) -> str:
    """Name what came of a signal by what `ended_with` returned and standard error.

    With `may_be_done` the program may have been at its end already.
    """
    if end is None:
        return "lost"
    code, seconds = end
    if seconds > SECONDS_TO_STOP:
        return "late"
    if "Exception ignored" in notes or re.search(
        r'/src/main\.py", line \d+, in main\n', notes
    ):
        return "traceback"
    if "Traceback" in notes:
        return "traceback of Python's own start, before main"
    if code == 128 + signal.SIGINT:
        return "exit code 130"
    if code == -signal.SIGINT:
        return "ended by SIGINT itself, silently"
    return "done before it" if may_be_done and code == 0 else "wrong"


def run_once(model: Path, delay: float | None, answer_to: str | None = None) -> str:
    """Run a prompt, to its end or with SIGINT after some time; return what came of it.

    The time is that from the start of the process, or of an answer without an end.
    """
    size = ("-c", "1000", "-n", "300") if answer_to is None else ("-c", "100000")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start_program("-m", model, *size, "-p", answer_to or "Hello", **pipes) as child:
        if delay is None:
            child.communicate()  # one that cannot write ends early
            return ""
        assert child.stderr is not None
        said = b"" if answer_to is None else child.stderr.readline()
        time.sleep(delay)
        end = ended_with(child.pid)
        child.returncode = 0  # it was waited for already
        said += child.stderr.read()
    return outcome_of(end, said.decode(), may_be_done=answer_to is None)


def open_chat(model: Path, terminal: str) -> "pexpect.spawn[str]":
    return pexpect.spawn(
        PROGRAM[0], [*PROGRAM[1:], "-m", str(model), "-c", "100000"], cwd=REPOSITORY,
        env=environment(TERM=terminal), timeout=SECONDS_TO_GIVE_UP, encoding="utf-8",
    )  # fmt: skip


def interrupt_a_chat(
    child: "pexpect.spawn[str]", terminal: str, prompt: str, delay: float
) -> tuple[str, str]:
    """Send SIGINT some time after a message was taken; return what came of it, and its
    text.
    """
    child.sendline(prompt[:1000])
    if terminal != "dumb":
        child.expect_exact(EDITOR_ENDS)
    time.sleep(delay)
    seconds = stopwatch(child.pid)
    os.kill(child.pid, signal.SIGINT)
    found = child.expect(
        [STOPPED, CHAT_PROMPT, "Traceback", pexpect.TIMEOUT, pexpect.EOF]
    )
    if found > 1:
        return ("traceback", "lost", "wrong")[found - 2], f"{child.before}{child.after}"
    if found == 0:
        child.expect(CHAT_PROMPT)
    if seconds() > SECONDS_TO_STOP:
        return "late", ""
    return "back at the prompt" if found == 0 else BEFORE_THE_ANSWER, ""


def interrupt_answers(
    model: Path, count: int, source: random.Random
) -> tuple[Outcomes, Outcomes]:
    runs: Outcomes = Counter()
    chats: Outcomes = Counter()
    in_chats = count // 3
    for number in range(count - in_chats):
        delay = source.uniform(0, FIRST_SECONDS)
        runs[run_once(model, delay, PROMPTS[number % 2])] += 1
    number = 0
    while chats.total() - chats[BEFORE_THE_ANSWER] < in_chats:
        terminal = TERMINALS[number // ANSWERS_OF_A_CHAT % 2]
        child = open_chat(model, terminal)
        child.expect(CHAT_PROMPT)
        for _ in range(ANSWERS_OF_A_CHAT):
            delay = source.uniform(0, FIRST_SECONDS)
            outcome, said = interrupt_a_chat(child, terminal, PROMPTS[number % 2], delay)
            chats[outcome] += 1
            number += 1
            if outcome in BAD:
                print(outcome, terminal, repr(said), flush=True)
                break
        child.close(force=True)
    return runs, chats


def interrupt_at_moments(model: Path, count: int, source: random.Random) -> Outcomes:
    """Send SIGINT at random times between the start of a process and its end."""
    life = 0.0
    for _ in range(3):
        begun = time.monotonic()
        run_once(model, None)
        life = max(life, time.monotonic() - begun)
    print(f"a process lives {life:.2f} s", flush=True)
    return Counter(run_once(model, source.uniform(0, life)) for _ in range(count))


def main() -> int:
    """Do all that is asked for, and print it; return 1 if a signal had a bad end."""
    parser = argparse.ArgumentParser(description="Send SIGINT to the program.")
    parser.add_argument("--answers", type=int, default=3000)
    parser.add_argument("--moments", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    source = random.Random(options.seed)
    found: list[Outcomes] = []

    def show(name: str, outcomes: Outcomes) -> None:
        found.append(outcomes)
        print(f"{name}: {outcomes.total()} signals")
        print(
            *(f"  {count:5} {outcome}" for outcome, count in outcomes.most_common()),
            sep="\n",
        )
        sys.stdout.flush()

    with tempfile.TemporaryDirectory() as top:
        model = write_reciting_directory(Path(top), ALPHABET.encode(), endless=True)
        runs, chats = interrupt_answers(model, options.answers, source)
        show("first 100 ms of an answer, one prompt", runs)
        show("first 100 ms of an answer, chat", chats)
        runs = interrupt_at_moments(model, options.moments, source)
        show("any moment, one prompt", runs)
    return int(any(outcomes[bad] for outcomes in found for bad in BAD))


if __name__ == "__main__":
    sys.exit(main())
