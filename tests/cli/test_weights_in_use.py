"""Weights that change during an answer: one line and exit code 3, whatever was done to the file."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import ALPHABET, PROGRAM, REPOSITORY, SECONDS, Outcome, environment

TOKENS = 8000
TRUNCATED = (
    b"error: a model file: expected all bytes that were mapped, got fewer (truncated while in use, "
    b"or its device fails)\n"
)


def truncate(weights: Path) -> None:
    os.truncate(weights, 0)


def truncate_the_end(weights: Path) -> None:
    os.truncate(weights, weights.stat().st_size - 8192)


def rewrite(weights: Path) -> None:
    """Writes the same bytes again, so that only the time tells."""
    content = weights.read_bytes()
    with open(weights, "r+b") as file:
        file.write(content)


def replace(weights: Path) -> None:
    """Puts another file in its place, as downloads and editors do; the mapped one stays."""
    other = weights.with_name("other")
    other.write_bytes(b"another model")
    other.rename(weights)


def answer_while(model: Path, change: Callable[[Path], None], *, threads: int = 1) -> Outcome:
    """Runs the program on a model, and changes its weights after the first words."""
    with subprocess.Popen(
        [*PROGRAM, "-m", str(model), "-p", "x", "-q", "-n", str(TOKENS), "-c", str(2 * TOKENS),
         "--threads", str(threads)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY, env=environment(),
        bufsize=0,  # communicate() does not see what a buffer has read ahead
    ) as process:  # fmt: skip
        assert process.stdout is not None
        first = b""
        while len(first) < len(ALPHABET):
            first += process.stdout.read(len(ALPHABET) - len(first)) or b"?"
        process.send_signal(signal.SIGSTOP)  # so that the change falls into the answer
        change(model / "consolidated.00.pth")
        process.send_signal(signal.SIGCONT)
        rest, notes = process.communicate(timeout=SECONDS)
    return Outcome(process.returncode, first + rest, notes)


@pytest.fixture
def model(endless_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(endless_model, tmp_path / "model"))


@pytest.mark.parametrize("threads", [1, 2])
def test_f1_weights_truncated_during_an_answer_are_one_line(model: Path, threads: int) -> None:
    done = answer_while(model, truncate, threads=threads)
    assert (done.returncode, done.stderr) == (3, TRUNCATED)
    assert done.stdout.startswith(ALPHABET.encode())
    assert len(done.stdout) < TOKENS


@pytest.mark.parametrize("change", [truncate_the_end, rewrite])
def test_f1_weights_changed_during_an_answer_are_one_line(
    model: Path, change: Callable[[Path], None]
) -> None:
    done = answer_while(model, change)
    assert done.returncode == 3
    assert done.stderr == TRUNCATED or b"while in use" in done.stderr
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("change", [lambda _: None, replace], ids=["nothing", "replace"])
def test_f1_twin_weights_that_stay_or_are_replaced_give_the_whole_answer(
    model: Path, change: Callable[[Path], None]
) -> None:
    done = answer_while(model, change)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == (ALPHABET * TOKENS)[:TOKENS].encode() + b"\n"


SENT = """
import signal
from src.ml.kernels import exit_on_bus_error
exit_on_bus_error()
signal.raise_signal(signal.SIGBUS)
"""


def test_a_bus_error_that_no_page_caused_ends_the_process_as_ever() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SENT], cwd=REPOSITORY, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGBUS, b"")
