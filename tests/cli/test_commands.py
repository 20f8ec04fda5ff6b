from pathlib import Path

import pytest

from src.cli.commands import COMMANDS, LeaveChat, completion_words, is_command, run_command
from src.cli.errors import UsageError
from src.cli.session import Session
from src.inference import SamplingError
from tests.cli.test_session import session_of


def reply(capsys: pytest.CaptureFixture[str], session: Session, line: str) -> str:
    capsys.readouterr()
    run_command(session, line)
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_a_command_is_a_single_line_that_starts_with_a_slash() -> None:
    assert is_command("/help")
    assert not is_command("/usr/bin\n/usr/lib")
    assert not is_command("1/2")
    assert not is_command("exit the room")


def test_help_lists_every_command(alphabet_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    text = reply(capsys, session, "/help")
    for name in (*COMMANDS, "Ctrl-C", "Ctrl-D", '"""'):
        assert f"\n{name} " in f"\n{text}"
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("/regne", "/regen"),
        ("/bogus", ""),
        ("/", ""),
        ("/HELP", "/help"),
        ("/sytem x", "/system, /set"),
        ("/temperature 1", "/set temperature VALUE"),
        ("/top-p", "/set top_p VALUE"),
        ("/temp 0", "/set temperature VALUE"),
    ],
)
def test_an_unknown_command_is_one_line_with_near_names(
    alphabet_model: Path, line: str, near: str
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    with pytest.raises(UsageError) as raised:
        run_command(session, line)
    message = f"no command {line.split()[0]}"
    message += f": near it {near}" if near else ""
    assert str(raised.value) == f"{message}; /help lists them all"


@pytest.mark.parametrize("line", ["/exit", "/exit ", "/bye", "/quit", "exit", "quit", " quit "])
def test_exit_leaves_by_any_of_its_names(alphabet_model: Path, line: str) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    assert is_command(line)
    with pytest.raises(LeaveChat):
        run_command(session, line)


def test_system_sets_shows_and_removes_the_prompt(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    assert reply(capsys, session, "/system") == "system prompt: none\n"
    assert reply(capsys, session, "/system Be  short. ") == "system prompt: Be  short.\n"
    assert session.system == "Be  short."
    assert reply(capsys, session, '/system ""') == "system prompt: none\n"
    assert session.system is None


def test_set_without_a_value_shows_what_is_set(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    assert reply(capsys, session, "/set top-k") == "top_k          50\n"
    assert reply(capsys, session, "/set").splitlines() == session.settings.lines()


def test_set_changes_one_setting_and_says_so(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    assert "temperature    0.0" in reply(capsys, session, "/set temperature 0")
    assert session.settings.sampling.temperature == 0.0


@pytest.mark.parametrize("line", ["/set x", "/set x 1", "/set temperature x"])
def test_a_wrong_set_changes_nothing(alphabet_model: Path, line: str) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    before = session.settings
    with pytest.raises(UsageError):
        run_command(session, line)
    with pytest.raises(SamplingError):
        run_command(session, "/set top_p 7")
    assert session.settings == before


def test_clear_undo_and_regen_do_as_the_session_does(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    session.ask("one")
    session.ask("two")
    assert reply(capsys, session, "/undo") == "taken back: two\n"
    run_command(session, "/set max_tokens 2")
    run_command(session, "/regen")
    assert [turn.answer for turn in session.turns] == ["ab"]
    reply(capsys, session, "/clear")
    assert session.turns == []


def test_every_command_can_be_completed() -> None:
    words = completion_words()
    assert set(words) == set(COMMANDS)
    assert "temperature" in (words["/set"] or ())
    assert "cache" in (words["/show"] or ())
    assert [name for name, choices in words.items() if choices is None] == [
        "/save", "/load", "/read",
    ]  # fmt: skip


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not command.usage])
def test_a_command_without_arguments_refuses_them(alphabet_model: Path, name: str) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    session.ask("one")
    with pytest.raises(UsageError, match=f"{name} takes nothing after it: got now"):
        run_command(session, f"{name} now ")
    assert len(session.turns) == 1


def test_tokens_shows_ids_bytes_and_pieces_of_a_text_as_it_was_typed(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    assert reply(capsys, session, "/tokens  \u00e9\x1b") == (
        "    id  bytes  text\n"
        "0   32  20     ' '\n"
        "1  195  c3     '\\xc3'\n"
        "2  169  a9     '\\xa9'\n"
        "3   27  1b     '\\x1b'\n"
        "4 tokens, 3 characters, 4 bytes\n"
    )
    assert "special" not in reply(capsys, session, "/tokens <|eot_id|>")
    with pytest.raises(UsageError, match="wants a text"):
        run_command(session, "/tokens")


def test_stats_turns_the_statistics_on_and_off(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")  # quiet
    session.ask("one")
    assert capsys.readouterr().err == ""
    reply(capsys, session, "/stats on")
    session.ask("one")
    assert " new " in capsys.readouterr().err
    reply(capsys, session, "/stats off")
    session.ask("one")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("line", ["/stats", "/stats yes", "/trace", "/trace 1"])
def test_a_switch_wants_on_or_off(alphabet_model: Path, line: str) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    with pytest.raises(UsageError, match="wants on or off: got"):
        run_command(session, line)


def test_there_is_no_system_prompt_in_a_completion(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3", "--completion")
    with pytest.raises(UsageError, match="no system prompt"):
        run_command(session, "/system Be short.")
