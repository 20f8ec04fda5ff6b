"""`/probs`: a table for each new token."""

import re
from pathlib import Path

import pytest

from src.cli.commands import run_command
from src.cli.errors import UsageError
from src.cli.session import Session
from tests.cli.test_commands import reply
from tests.cli.test_session import session_of


def asked(session: Session, capsys: pytest.CaptureFixture[str], text: str) -> str:
    capsys.readouterr()
    session.ask(text)
    return capsys.readouterr().err


def test_each_new_token_gets_its_candidates_and_the_drawn_one_is_marked(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "-n", "2", "--temperature", "0")
    assert "the 1 most probable" in reply(capsys, session, "/probs 1")
    # The logits are 10 * sqrt(512) for the next letter and 0 for all others.
    assert asked(session, capsys, "Hello") == (
        "    model  temperature 0  position 28\n"
        "* 100.00%        100.00%  97 'a'\n"
        "      512              1  tokens have a chance\n"
        "\n"
        "    model  temperature 0  position 29\n"
        "* 100.00%        100.00%  98 'b'\n"
        "      512              1  tokens have a chance\n"
    )


def test_what_a_step_left_out_is_a_dash(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "-n", "1", "--seed", "1")
    reply(capsys, session, "/probs 2")
    lines = asked(session, capsys, "Hello").splitlines()
    assert lines[0].split("  ")[-1] == "position 28"
    assert re.findall(r"\w+ [\d.]+", lines[0])[:3] == ["temperature 0.6", "top_k 50", "top_p 0.9"]
    assert re.fullmatch(r" +<0\.01% +- +- +-  0 '\\x00'", lines[2]) or lines[2].count("-") >= 1


def test_probs_off_ends_the_tables(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "-n", "1")
    reply(capsys, session, "/probs 2")
    assert reply(capsys, session, "/probs off") == "candidates: off\n"
    assert asked(session, capsys, "Hello") == ""


@pytest.mark.parametrize("argument", ["", "x", "0", "-1", "101", "1.5", "9" * 5000])
def test_a_wrong_number_of_candidates_is_refused(alphabet_model: Path, argument: str) -> None:
    session = session_of(alphabet_model, "-c", "300")
    with pytest.raises(UsageError, match=r"^/probs"):
        run_command(session, f"/probs {argument}")
    assert session.candidates == 0
    run_command(session, "/probs 100")
    assert session.candidates == 100
