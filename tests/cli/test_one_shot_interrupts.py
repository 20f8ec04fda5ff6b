"""Ctrl-C in every phase of a run with one prompt: exit code 130, and what was printed is kept."""

import fcntl
import os
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from src.checkpoint import checkpoint
from src.cli import loading, one_shot
from src.cli.console import Console
from src.inference import Sampler
from src.model import InferenceContext
from src.model.llama import LlamaTransformer
from src.tokenizer import Tokenizer
from tests.cli.conftest import ALPHABET, PROGRAM, REPOSITORY, SECONDS, Run, environment
from tests.cli.test_chat import SECONDS_TO_STOP
from tests.cli.test_interrupts import press_ctrl_c_at

F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", None)

# What runs in each phase, which of its calls Ctrl-C falls upon, and what was printed by then.
PHASES = {
    "reading the prompt": (one_shot, "decode_input", 0, b""),
    "the forecast of memory": (loading, "forecast_memory", 0, b""),
    "mapping the weights": (checkpoint, "map_pth", 0, b""),
    "checking the weights": (checkpoint, "check_shards", 0, b""),
    "allocating the cache": (InferenceContext, "__init__", 0, b""),
    "the loading line": (Console, "note", 0, b""),
    "tokenizing": (Tokenizer, "encode", 4, b""),
    "prefill": (LlamaTransformer, "forward", 0, b""),
    "decode": (LlamaTransformer, "forward", 3, b"abc\n"),
    "choosing": (Sampler, "sample", 2, b"ab\n"),
}


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_in_any_phase_ends_with_130_and_keeps_what_was_printed(
    run: Run, alphabet_model: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    owner, name, at, printed = PHASES[phase]
    press_ctrl_c_at(monkeypatch, owner, name, at, after=False)
    done = run("-m", alphabet_model, stdin=b"Hello")
    assert (done.returncode, done.stdout) == (130, printed)
    assert b"Traceback" not in done.stderr
    assert b"error" not in done.stderr
    assert done.stderr.endswith(b"\n") or not done.stderr
    monkeypatch.undo()
    assert run("-m", alphabet_model, stdin=b"Hello").stdout == f"{ALPHABET}\n".encode()


def interrupted(process: "subprocess.Popen[bytes]") -> float:
    """Sends Ctrl-C, expects exit code 130, and returns the seconds between."""
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=SECONDS) == 130
    return time.monotonic() - started


def test_ctrl_c_ends_the_wait_for_standard_input(alphabet_model: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, "-v", "-m", str(alphabet_model), "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
        env=environment(),
    ) as process:
        time.sleep(1)
        assert interrupted(process) < SECONDS_TO_STOP
        assert process.stderr is not None
        [line] = process.stderr.read().splitlines()
        assert line.startswith(b"llama-bolts ")  # no traceback behind what -v says at the start


@pytest.mark.skipif(F_SETPIPE_SZ is None, reason="the size of a pipe cannot be set here")
def test_ctrl_c_does_not_wait_for_a_reader_that_reads_no_more(endless_model: Path) -> None:
    reading, writing = os.pipe()
    assert F_SETPIPE_SZ is not None
    size = fcntl.fcntl(writing, F_SETPIPE_SZ, 4096)
    filling = b"." * (size - 200)  # so that the rest is full at once
    os.write(writing, filling)
    with subprocess.Popen(
        [*PROGRAM, "-m", str(endless_model), "-p", "x", "-c", "100000", "-q"],
        stdout=writing,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
        env=environment(),
    ) as process:
        os.close(writing)
        while not is_full(reading, size):
            time.sleep(0.05)
        time.sleep(0.1)
        assert interrupted(process) < SECONDS_TO_STOP
        assert process.stderr is not None
        assert process.stderr.read() == b""
    printed = b""
    while part := os.read(reading, 4096):
        printed += part
    os.close(reading)
    assert printed == filling + (ALPHABET.encode() * 8)[:200]


def is_full(descriptor: int, size: int) -> bool:
    waiting: int
    (waiting,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))
    return waiting == size
