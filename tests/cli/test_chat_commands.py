"""Every command of the chat, typed in a pseudo-terminal, on the bundled model."""

import json
from pathlib import Path

import pexpect
import pytest

from src.cli.commands import COMMANDS
from tests.cli.conftest import Spawn
from tests.cli.test_chat import CTRL_C, CTRL_D, PROMPT, TERMINALS, ended

FLAGS = ("--temperature", "0", "--seed", "1")
TAB = "\t"


class Typist:
    """Types lines into a chat and notes which commands were used."""

    def __init__(self, child: "pexpect.spawn[str]") -> None:
        self.child = child
        self.used: set[str] = set()
        child.expect(PROMPT)

    def type(self, line: str, *expected: str) -> None:
        """Types a line, and waits for what it writes, in order, and for the prompt."""
        if line.startswith("/"):
            self.used.add(line.split()[0])
        self.child.sendline(line)
        for text in expected:
            self.child.expect_exact(text)
        self.child.expect(PROMPT)


# The one is the slower to type into; what does not depend on the terminal is typed into the other.
@pytest.fixture(params=["dumb", pytest.param("xterm-256color", marks=pytest.mark.slow)])
def plain_typist(request: pytest.FixtureRequest, spawn: Spawn) -> Typist:
    return Typist(spawn(*FLAGS, dimensions=(50, 120), TERM=request.param))


@pytest.fixture(params=TERMINALS)
def typist(request: pytest.FixtureRequest, spawn: Spawn, tmp_path: Path) -> Typist:
    log = ("--debug-log", tmp_path / "debug.log")
    return Typist(spawn(*FLAGS, *log, dimensions=(50, 120), TERM=request.param))


def test_every_command_does_what_it_says(typist: Typist, tmp_path: Path) -> None:
    chat, text, log = tmp_path / "chat.json", tmp_path / "text.txt", tmp_path / "debug.log"
    text.write_text("My name is Anna.\n")
    typist.type("/trace off", "trace: off")
    typist.type("/help", "/why", "Ctrl-D")
    typist.type("/system You are a pirate", "system prompt: You are a pirate")
    typist.type('/system ""', "system prompt: none")
    typist.type("What is the capital of Turkey?", "Ankara.", "eot")
    typist.type("/regen", "Ankara.", "(21 cached)")
    typist.type("/why", "eot: the model drew <|eot_id|>", "cut: nothing", "prompt: sent whole")
    typist.type("/show model", "3.2 M parameters")
    typist.type("/show params", "temperature    0.0", "chat format: llama3")
    typist.type("/show prompt", "<|start_header_id|>user", "What is the capital of Turkey?")
    typist.type("/show cache", "layers: 4", "21 were in the cache and 1 were run")
    typist.type("/show tokens", "<|begin_of_text|>", "tokens")
    typist.type(f"/save {chat}", "saved: 1 question with its answer")
    typist.type("/undo", "taken back: What is the capital of Turkey?")
    typist.type("/undo", "error: there is nothing to take back")
    typist.type(f"/load {chat}", "loaded: 1 question with its answer")
    typist.type("/clear", "the conversation starts anew")
    typist.type(f"/read {text}", "read: 16 characters")
    typist.type("/stats off", "statistics after each answer: off")
    typist.type("What is my name?", "Anna")
    typist.type("/stats on", "statistics after each answer: on")
    typist.type("/tokens Hello", "id", "48 65 6c 6c 6f", "'Hello'", "1 token, ")
    typist.type("/set max_tokens 2", "max_tokens     2")
    typist.type("/probs 2", "candidates: the 2 most probable")
    typist.type("Hello", "temperature 0", "* ", "100.00%", "tokens have a chance", "max tokens")
    typist.type("/probs off", "candidates: off")
    typist.type("/continue", "max tokens", "/continue goes on")
    typist.type("/examples", "2. [chat] Describe your theory. (system: You are Einstein)")
    typist.type("/trace on", f"trace: {log}")
    typist.type("Hello", "max tokens")
    typist.type("/trace off", "trace: off")
    assert "feed-forward" in log.read_text()
    assert [m["role"] for m in json.loads(chat.read_text())["messages"]] == ["user", "assistant"]
    typist.used.add("/exit")
    assert typist.used == set(COMMANDS)
    typist.child.sendline("/exit")
    assert ended(typist.child) == 0


def test_what_is_wrong_is_one_line_and_the_chat_goes_on(
    plain_typist: Typist, tmp_path: Path
) -> None:
    typist = plain_typist
    bad = tmp_path / "bad"
    bad.write_bytes(b'{"\x1b]0;title\x07": 1')
    for line, reason in (
        ("/load", "error: a name of a file is wanted"),
        (f"/load {bad}", "error: "),
        (f"/load {tmp_path}", "expected a regular file, got a directory"),
        (f"/read {bad}.no", "cannot be opened: No such file or directory"),
        (f"/save {bad}", "expected a new file or a saved chat"),
        (f"/save {tmp_path}/no/chat", "cannot be written: No such file or directory"),
        ("/set heat 1", "error: no setting heat"),
        ("/set top_p 2", "error: [sampling] top_p"),
        ("/probs many", "error: /probs wants off or a number"),
        ("/show weather", "error: /show wants one of model, "),
        ("/stats", "error: /stats wants on or off"),
        ("/trace", "error: /trace wants on or off"),
        ("/tokens", "error: /tokens wants a text"),
        ("/undo 2", "error: /undo takes nothing after it"),
        ("/sve x", "error: no command /sve: near it /save, /set; /help lists them all"),
    ):
        typist.child.sendline(line)
        typist.child.expect_exact(reason)
        typist.child.expect(PROMPT)
        assert "\x1b]0;" not in (typist.child.before or "")
    typist.type("What is the capital of Turkey?", "Ankara.", "22 prompt")
    typist.child.send(CTRL_C)
    typist.child.expect_exact("Ctrl-D or /exit leaves")
    typist.child.send(CTRL_D)
    assert ended(typist.child) == 0


def test_names_of_files_are_completed(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "a text.txt").write_text("My name is Anna.")
    typist = Typist(spawn(*FLAGS))
    typist.child.send(f"/rea{TAB}{tmp_path}/a{TAB}\r")
    typist.child.expect_exact("read: 16 characters")
    typist.child.expect(PROMPT)
    typist.type("What is my name?", "Anna")
