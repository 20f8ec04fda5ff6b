"""Sends SIGINT to the program, in the first 100 ms of answers and at random times of its life.

    python -m tests.hardening.faults.run_interrupts [--answers N] [--moments N] [--seed N]

Two thirds of the answers belong to runs with one prompt: each is a process that was forked when all
was imported, and that runs `main` from its first line to the end of the interpreter; its loading
line says that the answer begins. One third belongs to chats in a pseudo-terminal. The model never
ends an answer, so that a lost SIGINT is one after which the process goes on. The random times lie
between the start of `python -m src.main` and its end, of runs with one prompt and of chats, each a
process of its own. Seconds are those in which the main thread runs or sleeps: on a busy machine it
also waits for a processor. Prints what came of each signal; ends with 0 if none was lost or late,
and none gave a traceback once `main` ran.
"""

import argparse
import contextlib
import importlib
import os
import pkgutil
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pexpect

import src.cli
from src.main import main as run_program
from src.ml import kernels
from tests.cli.conftest import ALPHABET, EDITOR_ENDS, PROGRAM, REPOSITORY, environment
from tests.cli.reciting_model import write_reciting_directory

FIRST_SECONDS = 0.1  # of an answer
SECONDS_TO_STOP = 1.0
SECONDS_TO_GIVE_UP = 20.0
ANSWERS_OF_A_CHAT = 100
CHAT_PROMPT = ">>>"
STOPPED, AT_THE_PROMPT = "stopped; /continue goes on", "Ctrl-D or /exit leaves"
BEFORE_THE_ANSWER = "back at the prompt, before the answer began"
# A short prompt, and one whose reading takes most of the first 100 ms.
PROMPTS = ("Hello", "a long text " * 400)
TERMINALS = ("dumb", "xterm-256color")
BAD = ("lost", "late", "traceback", "wrong")

Outcomes = Counter[str]


def waited_for_a_processor(process: int) -> float:
    """Return the seconds that the main thread of a process was ready and did not run."""
    with open(f"/proc/{process}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1]) / 1e9


class Stopwatch:
    """Seconds since a signal was sent to a process, without those of waiting for a processor."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._waited = waited_for_a_processor(process)
        self._begun = time.monotonic()

    def seconds(self) -> float:
        passed = time.monotonic() - self._begun
        return passed - (waited_for_a_processor(self._process) - self._waited)


def ended_with(process: int) -> tuple[int, float] | None:
    """Send SIGINT, wait for the end; return exit code and seconds, None where it goes on."""
    stopwatch = Stopwatch(process)
    os.kill(process, signal.SIGINT)
    give_up = time.monotonic() + SECONDS_TO_GIVE_UP
    while time.monotonic() < give_up:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            seconds = stopwatch.seconds()
            return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), seconds
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
    if "Exception ignored" in notes or re.search(r'/src/main\.py", line \d+, in main\n', notes):
        return "traceback"
    if "Traceback" in notes:
        return "traceback of Python's own start, before main"
    if code == 128 + signal.SIGINT:
        return "exit code 130"
    if code == -signal.SIGINT:
        return "ended by SIGINT itself, silently"
    return "done before it" if may_be_done and code == 0 else "wrong"


def import_all() -> None:
    """Import what the command line imports in any of its branches, so that no child has to."""
    for module in pkgutil.iter_modules(src.cli.__path__, "src.cli."):
        if module.name != "src.cli.reference":  # the process of its own of --verify
            importlib.import_module(module.name)


def start(arguments: Sequence[str], output: int, notes: int) -> int:
    """Fork a process that runs the program as `python -m src.main` does, on these descriptors."""
    process = os.fork()
    if process:
        return process
    null = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((null, output, notes)):
        os.dup2(descriptor, number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    kernels._most_threads = kernels.MAX_THREADS  # no thread of OpenMP was there to stay behind
    kernels.set_num_threads(kernels.available_processors())
    sys.exit(run_program(arguments))


def read_until(descriptor: int, mark: bytes) -> bytes:
    """Read until a mark has come, or the end."""
    text = b""
    while mark not in text:
        ready, _, _ = select.select([descriptor], [], [], SECONDS_TO_GIVE_UP)
        part = os.read(descriptor, 65536) if ready else b""
        if not part:
            break
        text += part
    return text


def interrupt_one_answer(model: Path, prompt: str, delay: float) -> str:
    """Send SIGINT some time after an answer began; return what came of it."""
    output, notes = os.pipe(), os.pipe()
    process = start(("-m", str(model), "-c", "100000", "-p", prompt), output[1], notes[1])
    os.close(output[1])
    os.close(notes[1])
    said = read_until(notes[0], b"\n")
    time.sleep(delay)
    end = ended_with(process)
    said += read_until(notes[0], b"\0")  # never written: to the end
    os.close(output[0])
    os.close(notes[0])
    return outcome_of(end, said.decode(), may_be_done=False)


def open_chat(model: Path, terminal: str, *arguments: str) -> "pexpect.spawn[str]":
    return pexpect.spawn(
        PROGRAM[0], [*PROGRAM[1:], "-m", str(model), "-c", "100000", *arguments], cwd=REPOSITORY,
        env=environment(TERM=terminal), timeout=SECONDS_TO_GIVE_UP, encoding="utf-8",
    )  # fmt: skip


def interrupt_a_chat(
    child: "pexpect.spawn[str]", terminal: str, prompt: str, delay: float
) -> tuple[str, str]:
    """Send SIGINT some time after a message was taken; return what came of it, and its text."""
    child.sendline(prompt[:1000])
    if terminal != "dumb":
        child.expect_exact(EDITOR_ENDS)
    time.sleep(delay)
    stopwatch = Stopwatch(child.pid)
    os.kill(child.pid, signal.SIGINT)
    found = child.expect([STOPPED, CHAT_PROMPT, "Traceback", pexpect.TIMEOUT, pexpect.EOF])
    if found > 1:
        return ("traceback", "lost", "wrong")[found - 2], f"{child.before}{child.after}"
    if found == 0:
        child.expect(CHAT_PROMPT)
    if stopwatch.seconds() > SECONDS_TO_STOP:
        return "late", ""
    return "back at the prompt" if found == 0 else BEFORE_THE_ANSWER, ""


def interrupt_answers(model: Path, count: int, source: random.Random) -> tuple[Outcomes, Outcomes]:
    """Interrupt as many answers of runs with one prompt, and of chats."""
    runs: Outcomes = Counter()
    chats: Outcomes = Counter()
    in_chats = count // 3
    for number in range(count - in_chats):
        delay = source.uniform(0, FIRST_SECONDS)
        runs[interrupt_one_answer(model, PROMPTS[number % 2], delay)] += 1
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


def run_once(model: Path, delay: float | None) -> tuple[str, float]:
    """Run a prompt in a process of its own; return what came of SIGINT, and the seconds it ran."""
    begun, outcome = time.monotonic(), ""
    command = [*PROGRAM, "-m", str(model), "-c", "1000", "-n", "300", "-p", "Hello"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(PYTHONPATH=str(REPOSITORY)), **pipes) as child:
        if delay is not None:
            time.sleep(delay)
            end = ended_with(child.pid)
            child.returncode = 0  # it was waited for already
            assert child.stderr is not None
            outcome = outcome_of(end, child.stderr.read().decode(), may_be_done=True)
        else:
            child.communicate()  # to its end: one that cannot write ends early
    return outcome, time.monotonic() - begun


def chat_once(model: Path, terminal: str, delay: float | None) -> tuple[str, float]:
    """Ask in a chat and leave it, with SIGINT after some time; return as `run_once`.

    A chat that goes on after it must take the end of its input.
    """
    begun = time.monotonic()
    child = open_chat(model, terminal, "-n", "300")
    child.sendline("Hello")
    if delay is None:
        child.expect_exact(" new ")
        child.expect(CHAT_PROMPT)
        seconds = time.monotonic() - begun
        child.close(force=True)
        return "", seconds
    time.sleep(delay)
    os.kill(child.pid, signal.SIGINT)
    killed = time.monotonic()
    said = ""
    while time.monotonic() < killed + SECONDS_TO_GIVE_UP:
        with contextlib.suppress(pexpect.TIMEOUT):
            child.expect(pexpect.EOF, timeout=0.3)
            break
        child.sendline("")
        child.send("\x04")
    else:
        child.close(force=True)
        return "lost", time.monotonic() - begun
    said = child.before or ""
    child.close()
    code = -child.signalstatus if child.signalstatus else child.exitstatus
    end = int(code or 0), 0.0
    outcome = outcome_of(end, said, may_be_done=True)
    if outcome == "done before it":
        heard = "^C" in said or STOPPED in said or AT_THE_PROMPT in said
        outcome = "chat went on at its prompt" if heard else "wrong"
    return outcome, time.monotonic() - begun


def interrupt_at_moments(
    once: Callable[[float | None], tuple[str, float]], count: int, source: random.Random
) -> Outcomes:
    """Send SIGINT at random times between the start of a process and its end."""
    life = max(once(None)[1] for _ in range(3))
    print(f"a process lives {life:.2f} s", flush=True)
    return Counter(once(source.uniform(0, life))[0] for _ in range(count))


def main() -> int:
    """Do all that is asked for, and print it; return 1 if a signal had a bad end."""
    parser = argparse.ArgumentParser(description="Send SIGINT to the program.")
    parser.add_argument("--answers", type=int, default=3000)
    parser.add_argument("--moments", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    import_all()
    source, owner = random.Random(options.seed), os.getpid()
    top = Path(tempfile.mkdtemp())
    try:
        model = write_reciting_directory(top / "endless", ALPHABET.encode(), endless=True)
        runs, chats = interrupt_answers(model, options.answers, source)
        found = {"first 100 ms of an answer, one prompt": runs,
                 "first 100 ms of an answer, chat": chats}  # fmt: skip
        print(found, flush=True)
        found["any moment, one prompt"] = interrupt_at_moments(
            lambda delay: run_once(model, delay), options.moments * 3 // 4, source
        )
        print(found, flush=True)
        found["any moment, chat"] = interrupt_at_moments(
            lambda delay: chat_once(model, TERMINALS[source.random() < 0.5], delay),
            options.moments - options.moments * 3 // 4, source,
        )  # fmt: skip
    finally:
        if os.getpid() == owner:  # a forked child leaves through here too
            shutil.rmtree(top)
    for name, outcomes in found.items():
        print(f"{name}: {outcomes.total()} signals")
        print(*(f"  {count:5} {outcome}" for outcome, count in outcomes.most_common()), sep="\n")
    return int(any(outcomes[bad] for outcomes in found.values() for bad in BAD))


if __name__ == "__main__":
    sys.exit(main())
