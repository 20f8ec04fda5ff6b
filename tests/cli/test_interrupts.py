"""Ctrl-C in every phase of an answer: the prompt is back, and the next answer as it would be."""

import functools
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest

from src.cli.console import Console
from src.inference import Sampler
from src.model import Model
from src.model.llama import LlamaTransformer
from src.tokenizer import StreamDecoder, Tokenizer
from tests.cli.conftest import ALPHABET, Spawn
from tests.cli.test_chat import CTRL_C, CTRL_D, PROMPT, SECONDS_TO_STOP, ended
from tests.cli.test_session import session_of

# What runs in each phase, and which of its calls Ctrl-C falls upon.
PHASES: dict[str, tuple[type, str, int]] = {
    "checking the files": (Model, "check_unchanged", 0),
    "tokenizing": (Tokenizer, "encode", 1),
    "prefill": (LlamaTransformer, "forward", 0),
    "choosing": (Sampler, "sample", 0),
    "decode": (LlamaTransformer, "forward", 4),
    "decoding text": (StreamDecoder, "push", 3),
    "printing": (Console, "answer", 3),
    "ending the line": (Console, "end_answer", 0),
}


def press_ctrl_c_at(
    patch: pytest.MonkeyPatch, owner: type, name: str, at: int, *, after: bool
) -> None:
    """Sends Ctrl-C before or after one call of a method."""
    method: Callable[..., Any] = getattr(owner, name)
    calls = 0

    @functools.wraps(method)
    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at + 1 and not after:
            signal.raise_signal(signal.SIGINT)
        result = method(*arguments, **named)
        if calls == at + 1:
            signal.raise_signal(signal.SIGINT)
        return result

    patch.setattr(owner, name, counted)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_in_any_phase_leaves_the_next_answer_as_it_would_have_been(
    random_model: Path, monkeypatch: pytest.MonkeyPatch, phase: str, after: bool
) -> None:
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
            assert phase in ("checking the files", "ending the line")  # the chat takes this one
    session.turns = session.turns[:1]
    assert session.turns == expected.turns
    assert session.ask("two").text == expected.ask("two").text
    assert session.turns == expected.turns


@pytest.fixture(params=["dumb", pytest.param("xterm-256color", marks=pytest.mark.slow)])
def endless(
    request: pytest.FixtureRequest, spawn: Spawn, endless_model: Path
) -> "pexpect.spawn[str]":
    child = spawn("-m", endless_model, "-c", "200000", TERM=request.param)
    child.expect(PROMPT)
    return child


def interrupt(child: "pexpect.spawn[str]") -> None:
    """Sends Ctrl-C and waits for the prompt."""
    started = time.monotonic()
    child.send(CTRL_C)
    child.expect_exact("stopped; the history is as it was")
    child.expect(PROMPT)
    assert time.monotonic() - started < SECONDS_TO_STOP


def answers_as_before(child: "pexpect.spawn[str]") -> None:
    """Checks that a short question gets the answer of a chat that has just begun."""
    child.sendline("/set max_tokens 26")
    child.expect_exact("26")
    child.expect(PROMPT)
    child.sendline("Hello")
    child.expect_exact(ALPHABET + "\r\n")
    child.expect_exact("28 prompt tokens")
    child.expect(PROMPT)
    child.send(CTRL_D)
    assert ended(child) == 0


def test_ctrl_c_while_the_terminal_takes_nothing_more(endless: "pexpect.spawn[str]") -> None:
    endless.sendline("Hello")
    endless.expect_exact(ALPHABET)
    time.sleep(0.5)  # nothing is read: the buffer of the terminal is full, and the chat waits
    interrupt(endless)
    answers_as_before(endless)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.2, 0.5, 1.0, 2.0])
def test_ctrl_c_while_a_long_text_is_tokenized_or_run(
    endless: "pexpect.spawn[str]", tmp_path: Path, seconds: float
) -> None:
    text = tmp_path / "long.txt"
    text.write_text("a long text " * 12000)
    endless.sendline(f"/read {text}")
    endless.expect_exact("144")
    endless.expect(PROMPT)
    endless.sendline("What is it about?")
    time.sleep(seconds)
    interrupt(endless)
    answers_as_before(endless)


@pytest.mark.slow
def test_ctrl_c_while_a_file_is_read_leaves_nothing_of_it(
    endless: "pexpect.spawn[str]", tmp_path: Path
) -> None:
    text = tmp_path / "long.txt"
    text.write_text("a long text " * 80000)
    endless.sendline(f"/read {text}")
    time.sleep(0.2)
    endless.send(CTRL_C)
    endless.expect(PROMPT)
    answers_as_before(endless)
