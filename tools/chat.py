"""The generated blocks of docs/A-CHAT.md: what a terminal shows of a chat that is typed into it."""

import os
import re
import shlex
import sys
import tempfile
from functools import cache
from pathlib import Path

import pexpect

from .pages import ROOT

_COMMAND = "python -m src.main --temperature 0 --seed 1 --context-length 512"
_KEYS = {"Ctrl-C": "\x03", "Ctrl-D": "\x04"}
_PROMPTS = [r"\r\n>>> ", r"\r\n\.\.\. ", pexpect.EOF]  # what the chat shows when it waits
_REPEATED = re.compile(r"(\d+)\*(.+)")
# What differs from run to run, and what is too long to show.
_VARIES = (
    (re.compile(r"\b[\d.]+/s\b"), "N/s"),
    (re.compile(re.escape(f"{ROOT}{os.sep}")), ""),
    (re.compile(r"(?:la ){20,}"), "la la la [600 times] "),
)


def chat(page: Path, argument: str) -> str:
    """Return a part of a page's chat: `chat "Hello!" /help Ctrl-C "600*la "`.

    All blocks of a page are one chat; no two have the same lines. `600*la ` repeats a text.
    """
    text = page.read_text(encoding="utf-8")
    parts = re.findall(r"^<!-- generated: chat (.*) -->$", text, flags=re.MULTILINE)
    return f"```text\n{_transcript(tuple(parts))[parts.index(argument)]}\n```"


@cache
def _transcript(parts: tuple[str, ...]) -> list[str]:
    """Have one chat in a directory with a file `maria.txt`; return what each part of it shows."""
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    transcript = []
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "maria.txt").write_text("My name is Maria.\n", encoding="utf-8")
        child = pexpect.spawn(
            sys.executable,
            _COMMAND.split()[1:],
            cwd=directory,
            env=environment | {"TERM": "dumb", "PYTHONPATH": str(ROOT)},
            timeout=60,
            encoding="utf-8",
        )
        try:
            child.expect(_PROMPTS)
            shown = f"$ {_COMMAND}\n{child.before}\n"
            for part in parts:
                for line in shlex.split(part):
                    repeated = _REPEATED.fullmatch(line)
                    typed = int(repeated[1]) * repeated[2] if repeated else line
                    child.send(_KEYS.get(line, f"{typed}\n"))
                    shown += child.after.lstrip("\r\n")
                    child.expect(_PROMPTS)
                    shown += f"{child.before}\n"
                for pattern, replacement in _VARIES:
                    shown = pattern.sub(replacement, shown)
                transcript.append("\n".join(map(str.rstrip, shown.splitlines())).strip("\n"))
                shown = ""
        finally:
            child.close(force=True)
    return transcript
