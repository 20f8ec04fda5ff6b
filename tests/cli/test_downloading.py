"""A download in the terminal: what is asked and shown,
and what needs nobody to answer.
"""

import os
import pty
import sys
import time

import pytest

from src.catalog import CatalogError, find_model
from src.catalog.downloads import LARGE_BYTES, Downloads, check_consent
from src.cli import downloading
from src.cli.arguments import parse_arguments
from src.cli.console import Console
from src.cli.downloading import DownloadProgress, ask_for_consent, download_named
from tests.cli.conftest import run_program


class Shown(Console):
    """A console that keeps the lines of its progress."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def show_progress(self, text: str) -> None:
        self.lines.append(text)


def test_progress_has_sizes_then_speed_and_time_left(monkeypatch):
    times = iter((0.0, 0.5, 2.0, 4.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    console = Shown()
    progress = DownloadProgress(console, "a")
    for done in (1 << 20, 2 << 20, 5 << 20, 9 << 20):
        progress.show(done, 9 << 20)
    assert console.lines == [
        "a: 1.0 MiB of 9.0 MiB",
        "a: 2.0 MiB of 9.0 MiB",
        "a: 5.0 MiB of 9.0 MiB, 2.0 MiB/s, 2 s left",
        "a: 9.0 MiB downloaded, checking",
    ]


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (b"y\n", True),
        (b"YES\n", True),
        (b"n\n", False),
        (b"\n", False),
        (b"\x1b[2Jy\n", False),
    ],
)
def test_a_person_is_asked_before_a_large_download(monkeypatch, typed, answer):
    asked = []
    master, slave = pty.openpty()
    with os.fdopen(slave, "r+b", buffering=0) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(Console, "can_edit_lines", True)

        def ask(_console: Console, text: str) -> None:
            asked.append(text)
            os.write(master, typed)

        monkeypatch.setattr(Console, "ask", ask)
        assert ask_for_consent(Console(), "a", 3 << 30) is answer
    os.close(master)
    assert asked == ["a: download 3.0 GiB? [y/N] "]


def test_nobody_is_asked_without_a_terminal_and_a_flag_answers(monkeypatch):
    monkeypatch.setattr(downloading, "is_name", lambda _text: True)

    def find(name: str, downloads: Downloads) -> None:
        check_consent(name, LARGE_BYTES + 1, downloads)

    monkeypatch.setattr(downloading, "find_model", find)
    with pytest.raises(
        CatalogError, match=r"^a: download: expected consent to 1\.0 GiB \(--yes"
    ):
        download_named("a", parse_arguments([]), Console())
    download_named("a", parse_arguments(["--yes"]), Console())


def test_a_small_download_needs_no_consent():
    check_consent("a", LARGE_BYTES, Downloads())


def test_a_name_without_a_model_ends_the_run_with_one_line():
    done = run_program("-m", "no-such-name", "-p", "x")
    with pytest.raises(CatalogError) as error:
        find_model("no-such-name")
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.decode() == f"error: {error.value}\n"
