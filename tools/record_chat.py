"""Writes docs/A-CHAT.md: a chat with the bundled model, typed into a terminal by this program.

`python -m tools.record_chat` makes the page again. What differs from run to run and from machine to
machine (speeds, free memory, where the checkout lies) is replaced by `N` and left out.
"""

import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pexpect

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "A-CHAT.md"
COMMAND = "python -m src.main --temperature 0 --seed 1 --context-length 512"
CTRL_C, CTRL_D = "\x03", "\x04"
_KEYS = {"Ctrl-C": CTRL_C, "Ctrl-D": CTRL_D}
# What the chat shows when it waits: by the pattern, the prompt.
_PROMPTS = {r"\r\n>>> ": ">>> ", r"\r\n\.\.\. ": "... ", pexpect.EOF: ""}
_SECONDS = 60  # until a prompt is given up
_VARIES = (
    (re.compile(r"\b\d+/s\b"), "N/s"),
    (re.compile(re.escape(f"{ROOT}{os.sep}")), ""),
    (re.compile(r"(?:la ){20,}"), "la la la [600 times] "),
)
_WIDTH = 110
_INTRODUCTION = """\
What follows was typed into a terminal by `python -m tools.record_chat`, which makes this page
again. The model is the bundled one, which is [tiny](../src/nano/model/MODEL_CARD.md). Lines that
begin with `>>>` and `...` were typed; speeds are replaced by `N`. Temperature 0 and a seed make the
answers the same each time."""


@dataclass(frozen=True)
class Scene:
    """A part of the chat.

    Attributes:
        heading: of its section; empty where it goes on with the one before.
        text: what the reader is told before it.
        typed: lines, or names of keys, in order.
    """

    heading: str
    text: str
    typed: tuple[str, ...]


SCENES = (
    Scene(
        "The first questions",
        "The first line says which model was loaded, and what memory it and its context take; the "
        "next ones, what the bundled model knows. An answer comes token by token. The line after "
        "it says what it took: tokens of the prompt and how many of them were in the cache from "
        "the turn before, new tokens, speeds, how full the context is, "
        "and why the answer stopped: `eot` is a token that ends a turn.",
        ("Hello!", "What is the capital of Norway?", "My name is Anna.", "What is my name?"),
    ),
    Scene(
        "Messages of several lines",
        "Three quotes begin and end one. Where the terminal can edit lines, a block that is pasted "
        "is one message too.",
        ('"""', "What is the capital of Japan?", 'Answer in one word."""'),
    ),
    Scene(
        "Second thoughts",
        "`/undo` takes the last question and its answer back, `/regen` answers again, `/clear` "
        "begins anew. The cache is kept for as far as the new prompt is the same.",
        ("/undo", "/system You are a pirate", "What is the capital of Peru?", "/regen", "/clear"),
    ),
    Scene(
        "",
        "Two quotes with nothing in between remove the system prompt. `/set` changes a setting, "
        "`/why` tells why the last answer stopped and what was cut.",
        ('/system ""', "/set max_tokens 5", "What happens in attention?", "/why"),
    ),
    Scene(
        "",
        "`/continue` goes on with an answer that was stopped. `/show params` lists all settings.",
        ("/continue", "/set max_tokens none", "/continue", "/show params"),
    ),
    Scene(
        "Files",
        "`/read` puts a text file before the next message. Here `anna.txt` holds the line "
        "`My name is Anna.`",
        ("/clear", "/read anna.txt", "What is my name?"),
    ),
    Scene(
        "",
        "`/save` writes messages and settings as JSON, and `/load` restores them. A file that is "
        "something else is not written over. Nothing else is kept: what was typed is remembered "
        "until the chat ends, and in no file. A name that ends in `.md` "
        "makes `/save` write Markdown, to be read.",
        ("/save chat.json", "/clear", "/load chat.json", "What is my name?", "/save anna.txt"),
    ),
    Scene(
        "Prompts to try",
        "`/examples` lists the predefined prompts; with a number, it asks one in a new chat.",
        ("/examples", "/examples 6", '/system ""'),
    ),
    Scene(
        "A look inside",
        "`/tokens` shows how a text is cut into tokens, `/show prompt` a prompt as it was sent. "
        "`/trace on` writes every step to a log.",
        ("/clear", "/tokens Hello, Zürich \N{LLAMA}", "What is 12 + 30?", "/show prompt"),
    ),
    Scene(
        "",
        "`/probs 3` shows the three most probable tokens of each step, and what each setting of "
        "the sampling makes of their chances. `-` is a token that was left out, `*` the one that "
        "was drawn.",
        (
            "/set temperature 1.5",
            "/set seed 4",
            "/set max_tokens 3",
            "/probs 3",
            "Tell me a story.",
        ),
    ),
    Scene(
        "",
        "`/show cache` tells what is kept of the conversation, and how much of the last prompt did "
        "not have to be run.",
        ("/probs off", "/show cache"),
    ),
    Scene(
        "When something is wrong",
        "It is said in one line, and the chat stays as it was.",
        ("/cleer", "/set top_p 2", "/load anna.txt", "la " * 600),
    ),
    Scene(
        "Leaving",
        "Ctrl-C stops an answer, which stays as far as it came; `/continue` goes on with it. Where "
        "there is no answer to stop, Ctrl-C says how to leave.",
        ("/help", "Ctrl-C", "Ctrl-D"),
    ),
)


def page() -> str:
    """Have the chat, and return the page."""
    parts = ["# A chat\n", _paragraph(_INTRODUCTION)]
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "anna.txt").write_text("My name is Anna.\n", encoding="utf-8")
        for scene, shown in zip(SCENES, _recorded(directory), strict=True):
            if scene.heading:
                parts.append(f"## {scene.heading}\n")
            parts += [_paragraph(scene.text), f"```text\n{shown}\n```\n"]
    return "\n".join(parts)


def _recorded(directory: str) -> Iterator[str]:
    """Type the scenes into a chat and yield what the terminal shows of each."""
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    child = pexpect.spawn(
        sys.executable,
        COMMAND.split()[1:],
        cwd=directory,
        env=environment | {"TERM": "dumb", "PYTHONPATH": str(ROOT)},
        timeout=_SECONDS,
        encoding="utf-8",
    )
    try:
        prompt = _wait(child)
        shown = f"$ {COMMAND}\n{child.before}\n"
        for scene in SCENES:
            for line in scene.typed:
                child.send(_KEYS.get(line, f"{line}\n"))
                shown += prompt
                prompt = _wait(child)
                shown += f"{child.before}\n"
            yield _steady(shown)
            shown = ""
    finally:
        child.close(force=True)


def _wait(child: "pexpect.spawn[str]") -> str:
    """Wait until the chat waits, and return its prompt."""
    found: int = child.expect(list(_PROMPTS))
    return list(_PROMPTS.values())[found]


def _paragraph(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def _steady(shown: str) -> str:
    """Return what a terminal shows without what varies and without blanks at the ends of lines."""
    for pattern, replacement in _VARIES:
        shown = pattern.sub(replacement, shown)
    return "\n".join(line.rstrip() for line in shown.splitlines()).strip("\n")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is written")


if __name__ == "__main__":
    main()
