"""What is typed during an answer, and the state of the terminal after every end of a
chat.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import ALPHABET, EDITOR_ENDS, Spawn, Terminal
from tests.cli.reciting_model import write_reciting_directory

# A shell that prints the state of the terminal before and after, and changes nothing
# itself.
SHELL = [
    "sh",
    "-c",
    'trap : INT QUIT; before=$(stty -g); "$@"; echo "ended with $?"; '
    'test "$before" = "$(stty -g)" && echo "state restored" || stty -a',
    "sh",
]
FLAGS = ("-c", "200000")


@pytest.fixture
def endless(open_chat: Spawn, endless_model: Path) -> Terminal:
    return open_chat("-m", endless_model, *FLAGS, prefix=SHELL)


def start_answer(child: Terminal, typed: str = "") -> None:
    """Asks a question, and types while it is answered."""
    child.sendline("Hello")
    child.expect_exact(EDITOR_ENDS)
    child.expect_exact(ALPHABET)
    child.send(typed)


def test_typing_during_an_answer_is_not_echoed_and_is_there_at_the_next_prompt(endless):
    start_answer(endless, "0123456789")
    endless.expect_exact(ALPHABET * 20)
    assert not set("0123456789") & set(endless.before)
    endless.press_ctrl("c", "interrupted", "stopped;")
    endless.expect_exact("0123456789")
    endless.sendcontrol("u")
    endless.say("/set max_tokens 26", "26")
    endless.say("Hello", f"{ALPHABET}\r\n")


def test_lines_that_are_typed_or_pasted_during_an_answer_are_answered_after_it(endless):
    endless.say("/set max_tokens 2000", "2000")
    start_answer(endless, "/set max_tokens 5\r")
    endless.send("\x1b[200~one\rtwo\x1b[201~\r")
    endless.expect_exact("max_tokens        5")
    endless.shows("... two", "abcde\r\n")
    endless.say("/undo", r"removed: one\ntwo")


def process_of(child: Terminal) -> int:
    """Returns the id of the chat, which the shell of a terminal runs."""
    done = subprocess.run(
        ["pgrep", "-P", str(child.pid)], capture_output=True, check=True
    )
    return int(done.stdout)


@pytest.mark.parametrize(
    ("number", "in_answer"),
    [
        (signal.SIGTERM, True),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, False, marks=pytest.mark.slow),
    ],
)
def test_the_terminal_has_its_state_back_after_a_signal(endless, number, in_answer):
    if in_answer:
        start_answer(endless, "typed")
    os.kill(process_of(endless), number)
    endless.expect_exact(f"ended with {128 + number}")
    endless.expect_exact("state restored")


def test_the_terminal_has_its_state_back_after_a_stopped_answer(endless):
    start_answer(endless)
    endless.press_ctrl("c", "stopped;")
    endless.sendline("/exit")
    endless.expect_exact("ended with 0")
    endless.expect_exact("state restored")


@pytest.mark.slow
def test_the_terminal_has_its_state_back_after_ctrl_backslash(endless):
    start_answer(endless, "\x1c")
    endless.expect_exact(f"ended with {128 + signal.SIGQUIT}")
    endless.expect_exact("state restored")


@pytest.mark.slow
def test_the_terminal_has_its_state_back_after_a_model_file_that_is_cut(
    open_chat, tmp_path
):
    """The process ends in a handler of C, in the middle of an answer."""
    directory = write_reciting_directory(
        tmp_path / "cut", ALPHABET.encode(), endless=True
    )
    child = open_chat("-m", directory, *FLAGS, prefix=SHELL)
    start_answer(child, "typed")
    os.truncate(directory / "consolidated.00.pth", 1000)
    child.expect_exact("error: a model file: ")
    child.expect_exact("ended with 3")
    child.expect_exact("state restored")


def test_ctrl_z_gives_the_shell_its_terminal_and_typing_is_hidden_again_after_fg(
    open_chat, endless_model
):
    script = (
        'set -m; before=$(stty -g); "$@"; test "$before" = "$(stty -g)" && echo "shown again"; '
        "read line; fg"
    )
    child = open_chat("-m", endless_model, *FLAGS, prefix=["sh", "-c", script, "sh"])
    start_answer(child)
    child.sendcontrol("z")
    child.expect_exact("shown again")
    child.sendline("")
    child.expect_exact(ALPHABET)
    time.sleep(0.2)
    child.send("0123456789")
    child.expect_exact(ALPHABET * 20)
    assert not set("0123456789") & set(child.before)
    child.press_ctrl("c", "stopped;")
    child.expect_exact("0123456789")


@pytest.mark.slow
def test_a_plain_terminal_keeps_its_echo(open_chat, endless_model):
    """It could not show what was typed at the next prompt."""
    child = open_chat("-m", endless_model, *FLAGS, TERM="dumb")
    child.sendline("Hello")
    child.expect_exact(ALPHABET)
    child.send("0123456789")
    child.expect_exact("0123456789")
