"""Ctrl-C in every phase of an answer: the prompt is back, and the next answer as it would
be.
"""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from src.checkpoint import checkpoint
from src.cli import application, loading
from src.cli.chat import LineEditor
from src.cli.console import Console
from src.inference import Sampler
from src.model import InferenceContext
from src.model.llama import LlamaTransformer
from src.model.sources import meta
from src.tokenizer import StreamDecoder, Tokenizer
from tests.cli.conftest import (
    ALPHABET,
    EDITOR_ENDS,
    EITHER,
    SECONDS,
    SECONDS_TO_STOP,
    Outcome,
    Spawn,
    Terminal,
    press_ctrl_c_at,
    run_code,
    session_of,
    start_program,
)

# What runs in each phase, and which of its calls Ctrl-C falls upon.
PHASES: dict[str, tuple[type, str, int]] = {
    "checking the files": (checkpoint.Checkpoint, "check_unchanged", 0),
    "tokenizing": (Tokenizer, "encode", 1), "prefill": (LlamaTransformer, "forward", 0),
    "choosing": (Sampler, "sample", 0), "decode": (LlamaTransformer, "forward", 4),
    "decoding text": (StreamDecoder, "push", 3), "printing": (Console, "answer", 3),
    "ending the line": (Console, "end_answer", 0),
}  # fmt: skip


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_in_any_phase_leaves_the_next_answer_as_it_would_have_been(
    random_model, monkeypatch, phase, after
):
    flags = ("-c", "1000", "-n", "8", "--seed", "3")
    expected = session_of(random_model, *flags)
    expected.ask("one")
    session = session_of(random_model, *flags)
    session.ask("one")
    with monkeypatch.context() as patch:
        press_ctrl_c_at(patch, *PHASES[phase], after=after)
        try:
            assert not session.ask("stop this").is_complete
        except KeyboardInterrupt:
            assert phase == "ending the line"  # the chat takes this one
    session.turns = session.turns[:1]
    assert session.turns == expected.turns
    assert session.ask("two").text == expected.ask("two").text
    assert session.turns == expected.turns


# A model whose first step loses the Ctrl-C that falls into it, as an import of Cython
# modules does.
LOSES_CTRL_C = """
import signal, sys, time
from src.cli.answer import stream_answer
from src.cli.console import Console
from src.inference import Step

def steps():
    for number, seconds in enumerate(map(float, sys.argv[1:])):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            assert number == 0
        assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        time.sleep(seconds)
    yield Step(1, "text", "eot")

_, reason = stream_answer(Console(quiet=True), steps)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(reason)
"""


@pytest.mark.parametrize(
    ("pauses", "code", "printed"),
    [
        (["1.1", "0"], -signal.SIGINT, b""),
        pytest.param(["0", "1.1", "0"], -signal.SIGINT, b"", marks=pytest.mark.slow),
        (["0", "0"], 0, b"text\neot\n"),  # too early: the clearing up may be under way
        (["0"], 0, b"text\neot\n"),
    ],
)
def test_a_ctrl_c_that_was_lost_does_not_silence_the_later_ones(pauses, code, printed):
    assert run_code(LOSES_CTRL_C, *pauses) == Outcome(code, printed, b"")


LOADS_NOTHING = """
import sys
from src.cli.application import run
from src.cli.arguments import parse_arguments
from src.cli.console import Console
from src.cli.new_session import open_session
session = open_session(parse_arguments(["-c", "64"]), Console(quiet=True))
before = set(sys.modules)
session.ask("Hello")
new = set(sys.modules) - before
origins = [getattr(sys.modules[name].__spec__, "origin", None) for name in new]
print(sorted(origin for origin in origins if origin and not origin.endswith(".py")))
"""


def test_an_answer_imports_no_extension_module_that_may_lose_a_ctrl_c():
    done = run_code(LOADS_NOTHING)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[-1] == b"[]"


def test_a_ctrl_c_when_the_line_editor_has_taken_the_line_is_not_lost(monkeypatch):
    editor = LineEditor()

    def prompt(**_: object) -> str:
        signal.raise_signal(signal.SIGINT)
        return "a line"

    monkeypatch.setattr(editor._session, "prompt", prompt)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="a line"):
        editor.read()
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.setattr(editor._session, "prompt", lambda **_: "a line")
    assert editor.read() == "a line"


def test_ctrl_c_right_after_enter_stops_the_question_and_keeps_it(
    open_chat, endless_model
):
    child = open_chat("-m", endless_model, "-c", "1000", TERM="xterm-256color")
    child.send("Hello\r\x03")
    child.shows("stopped before the answer began")
    child.sendline("/continue")
    child.expect_exact(ALPHABET)
    child.press_ctrl("c", "28 prompt", "stopped")


@pytest.fixture(params=EITHER)
def endless(
    request: pytest.FixtureRequest, open_chat: Spawn, endless_model: Path
) -> Terminal:
    return open_chat("-m", endless_model, "-c", "200000", TERM=request.param)


def interrupt(child: Terminal) -> None:
    """Sends Ctrl-C and waits for the prompt."""
    started = time.monotonic()
    child.press_ctrl("c", "stopped")
    assert time.monotonic() - started < SECONDS_TO_STOP


def answers_as_before(child: Terminal) -> None:
    """Checks that a short question gets the answer of a chat that has just begun."""
    child.say("/clear", "cleared")
    child.say("/set max_tokens 26", "26")
    child.say("Hello", ALPHABET + "\r\n", "28 prompt")
    assert child.code("d") == 0


def test_ctrl_c_while_the_terminal_takes_nothing_more(endless):
    endless.sendline("Hello")
    endless.expect_exact(ALPHABET)
    time.sleep(
        0.5
    )  # nothing is read: the buffer of the terminal is full, and the chat waits
    interrupt(endless)
    answers_as_before(endless)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.2, 0.5, 1.0, 2.0])
def test_ctrl_c_while_a_long_text_is_tokenized_or_run(endless, tmp_path, seconds):
    text = tmp_path / "long.txt"
    text.write_text("a long text " * 12000)
    endless.say(f"/read {text}", "144")
    endless.sendline("What is it about?")
    if endless.env["TERM"] != "dumb":
        endless.expect_exact(EDITOR_ENDS)
    time.sleep(seconds)
    interrupt(endless)
    answers_as_before(endless)


F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", None)

# What runs in each phase, which of its calls Ctrl-C falls upon, and what was printed by
# then.
ONE_SHOT_PHASES = {
    "reading the prompt": (application, "_read_prompt", 0, b""),
    "the forecast of memory": (loading, "forecast_memory", 0, b""),
    "mapping the weights": (meta, "map_pth", 0, b""),
    "checking the weights": (meta, "check_shards", 0, b""),
    "allocating the cache": (InferenceContext, "__init__", 0, b""),
    "the loading line": (Console, "note", 0, b""),
    "tokenizing": (Tokenizer, "encode", 4, b""),
    "prefill": (LlamaTransformer, "forward", 0, b""),
    "decode": (LlamaTransformer, "forward", 3, b"abc\n"),
    "choosing": (Sampler, "sample", 2, b"ab\n"),
}


@pytest.mark.parametrize("phase", ONE_SHOT_PHASES)
def test_ctrl_c_in_any_phase_ends_with_130_and_keeps_what_was_printed(
    run, alphabet_model, monkeypatch, phase
):
    owner, name, at, printed = ONE_SHOT_PHASES[phase]
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


def test_ctrl_c_ends_the_wait_for_standard_input(alphabet_model):
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start_program("-v", "-m", alphabet_model, "-", **pipes) as process:
        assert process.stderr.readline().startswith(
            b"llama-bolts "
        )  # what -v says at the start
        time.sleep(0.1)
        assert interrupted(process) < SECONDS_TO_STOP
        assert process.stderr.read() == b""  # no traceback


@pytest.mark.skipif(F_SETPIPE_SZ is None, reason="the size of a pipe cannot be set here")
def test_ctrl_c_does_not_wait_for_a_reader_that_reads_no_more(endless_model):
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, F_SETPIPE_SZ, 4096)
    filling = b"." * (size - 200)  # so that the rest is full at once
    os.write(writing, filling)
    arguments = ("-m", endless_model, "-p", "x", "-c", "100000", "-q")
    with start_program(*arguments, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        while not is_full(reading, size):
            time.sleep(0.05)
        time.sleep(0.1)
        assert interrupted(process) < SECONDS_TO_STOP
        assert process.stderr.read() == b""
    with open(reading, "rb") as pipe:
        assert pipe.read() == filling + (ALPHABET.encode() * 8)[:200]


def is_full(descriptor: int, size: int) -> bool:
    waiting = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    return int.from_bytes(waiting, sys.byteorder) == size
