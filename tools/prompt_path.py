"""The files of `src` that one prompt passes through: `python -m tools.prompt_path
[FLAGS]`.

A file counts if a function of it runs while a loaded model answers one prompt, from the
session that takes the prompt to the kernels and back to the terminal.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from src.cli.session import Session
from src.main import main

from .pages import ROOT

SRC = ROOT / "src"
PROMPT = ("-q", "--no-stats", "-p", "Hello", "-n", "3", "--seed", "1")


@contextmanager
def _noted(files: list[str]) -> Iterator[None]:
    """Note the files whose functions are called inside, in the order of their first
    calls.
    """

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        if path.startswith(f"{SRC}/") and path not in files:
            files.append(path)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def path_of_prompt(flags: list[str]) -> list[str]:
    """Answer a prompt in this process; return the files on its way."""
    files = list[str]()
    ask = Session.ask

    def noted_ask(session: Session, question: str) -> Any:
        with _noted(files):
            return ask(session, question)

    Session.ask = noted_ask  # type: ignore[assignment, method-assign]
    try:
        code = main([*PROMPT, *flags])
    finally:
        Session.ask = ask  # type: ignore[method-assign]
    assert code == 0, "the prompt is answered"
    return [Path(path).relative_to(SRC).as_posix() for path in files]


@cache
def prompt_path(*flags: str) -> tuple[str, ...]:
    """Return the files that a prompt passes through in a new process.

    Args:
        flags: Flags of the command line, such as `--completion`.
    """
    command = [sys.executable, "-m", "tools.prompt_path", *flags]
    output = subprocess.check_output(command, cwd=ROOT, text=True)
    files: list[str] = json.loads(output.splitlines()[-1])
    return tuple(files)


if __name__ == "__main__":
    print(f"\n{json.dumps(path_of_prompt(sys.argv[1:]))}")
