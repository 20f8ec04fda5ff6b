from pathlib import Path

import pexpect
import pytest

from src.cli.examples import example_lines
from tests.cli.conftest import Run, Spawn


def test_without_a_terminal_there_is_a_list_and_no_menu(run: Run, tmp_path: Path) -> None:
    done = run("--examples", "-m", tmp_path, stdin=b"1\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == example_lines()


def test_in_a_terminal_examples_are_chosen_by_number(spawn: Spawn, alphabet_model: Path) -> None:
    child = spawn("--examples", "-m", alphabet_model)
    for typed in ("0", "7", "x", "²", "9" * 200):
        child.expect_exact("Enter to leave: ")
        child.sendline(typed)
        child.expect_exact("error: expected a number from 1 to 6, got ")
    child.expect_exact("Enter to leave: ")
    child.sendline("1")
    child.expect_exact("tuvwxyz")
    child.expect_exact("18 prompt")
    child.expect_exact("Enter to leave: ")
    child.sendline("6")
    child.expect_exact("abcdefghijklmnopqrstuvwxyz")
    child.expect_exact("(1 cached)")
    child.expect_exact("Enter to leave: ")
    child.sendline("")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


@pytest.mark.parametrize(("key", "code"), [("\x04", 0), ("\x03", 130)])
def test_the_menu_can_be_left(spawn: Spawn, alphabet_model: Path, key: str, code: int) -> None:
    child = spawn("--examples", "-m", alphabet_model)
    child.expect_exact("Enter to leave: ")
    child.send(key)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == code
