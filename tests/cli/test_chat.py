"""The chat in a pseudo-terminal: with the line editor, and on a plain terminal."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from src.cli.chat import CommandCompleter, block_is_open, unquoted
from tests.cli.conftest import (
    ALPHABET,
    CTRL_C,
    CTRL_D,
    FORMAT_TOKENS,
    PROMPT,
    SECONDS_TO_STOP,
    TERMINALS,
    Spawn,
    ended,
    say,
)

PASTE_START, PASTE_END = "\x1b[200~", "\x1b[201~"
CONTINUATION = r"\.\.\."


def answered(child: "pexpect.spawn[str]", prompt_tokens: int, cached: int) -> None:
    """Waits for one whole answer of the alphabet model, its statistics and the next prompt."""
    child.expect_exact(ALPHABET)
    child.expect_exact(f"{prompt_tokens} prompt{f' ({cached} cached)' if cached else ''}")
    child.expect(PROMPT)


@pytest.fixture(params=TERMINALS)
def chat(
    request: pytest.FixtureRequest, open_chat: Spawn, alphabet_model: Path
) -> "pexpect.spawn[str]":
    return open_chat("-m", alphabet_model, TERM=request.param)


def test_messages_are_answered_and_the_second_turn_uses_the_cache(
    chat: "pexpect.spawn[str]",
) -> None:
    chat.sendline("Hello")
    answered(chat, FORMAT_TOKENS + 5, 0)
    chat.sendline("again")
    prompt = FORMAT_TOKENS + len("Hello")
    whole_turn = prompt + len(ALPHABET) + 1
    # The end of the first answer was never run: it is read with what follows it.
    new = FORMAT_TOKENS - 1 + len("again")
    chat.expect_exact(f"{whole_turn + new} prompt ({whole_turn - 1} cached)")


def test_ctrl_d_leaves_at_once(chat: "pexpect.spawn[str]") -> None:
    chat.send(CTRL_D)
    assert ended(chat) == 0


def test_ctrl_c_at_an_empty_prompt_says_how_to_leave(chat: "pexpect.spawn[str]") -> None:
    chat.send(CTRL_C)
    chat.expect_exact("Ctrl-D or /exit leaves")
    chat.expect(PROMPT)
    chat.send(CTRL_D)
    assert ended(chat) == 0


def test_ctrl_c_while_typing_drops_the_line(chat: "pexpect.spawn[str]") -> None:
    chat.send("not this")
    chat.expect_exact("not this")
    chat.send(CTRL_C)
    chat.expect(PROMPT)
    chat.sendline("Hello")
    answered(chat, FORMAT_TOKENS + 5, 0)


def test_an_empty_line_asks_nothing(chat: "pexpect.spawn[str]") -> None:
    say(chat, "")
    say(chat, "  ")
    chat.sendline("Hello")
    answered(chat, FORMAT_TOKENS + 5, 0)


def test_triple_quotes_hold_a_message_of_several_lines(chat: "pexpect.spawn[str]") -> None:
    chat.send('"""one\r')
    chat.expect(CONTINUATION)
    chat.send("/exit\r")
    chat.expect(CONTINUATION)
    chat.send('three"""\r')
    answered(chat, FORMAT_TOKENS + len("one\n/exit\nthree"), 0)


def test_the_end_of_input_inside_a_block_leaves(open_chat: Spawn, alphabet_model: Path) -> None:
    child = open_chat("-m", alphabet_model, TERM="dumb")
    child.send('"""one\r')
    child.expect(CONTINUATION)
    child.send(CTRL_D)
    assert ended(child) == 0


def test_a_pasted_block_is_one_message(open_chat: Spawn, alphabet_model: Path) -> None:
    child = open_chat("-m", alphabet_model)
    child.send(f"{PASTE_START}/one\rtwo\rthree{PASTE_END}")
    child.expect_exact("three")
    child.send("\r")
    answered(child, FORMAT_TOKENS + len("/one\ntwo\nthree"), 0)


def test_escape_sequences_that_are_typed_do_not_end_the_chat(
    open_chat: Spawn, alphabet_model: Path
) -> None:
    child = open_chat("-m", alphabet_model)
    for typed in ("\x1b[31m", "\x1b[<0;0m", "\x1b[M abc", "\x1b[1;1R", "\x1bx\x00"):
        child.send(f"a{typed}b\r")
        child.expect_exact(ALPHABET)
        child.expect(PROMPT)
    child.send(CTRL_D)
    assert ended(child) == 0


def test_the_line_editor_recalls_what_was_typed(open_chat: Spawn, alphabet_model: Path) -> None:
    child = open_chat("-m", alphabet_model)
    child.sendline("Hello")
    answered(child, FORMAT_TOKENS + 5, 0)
    say(child, "/clear", "anew")
    child.send("\x1b[A\x1b[A\r")
    child.expect_exact("28 prompt")


@pytest.mark.parametrize("terminal", TERMINALS)
def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(
    open_chat: Spawn, endless_model: Path, terminal: str
) -> None:
    child = open_chat("-m", endless_model, "-c", "100000", TERM=terminal)
    for _ in range(2):
        child.sendline("Hello")
        child.expect_exact(ALPHABET * 2)
        started = time.monotonic()
        child.send(CTRL_C)
        child.expect_exact("interrupted")
        child.expect(PROMPT)
        assert time.monotonic() - started < SECONDS_TO_STOP
        say(child, "/undo", "taken back: Hello")
    say(child, "/show prompt", "nothing was said yet")
    say(child, "/set max_tokens 5")
    child.sendline("Hello")
    child.expect_exact("28 prompt (27 cached)")
    child.expect(PROMPT)
    child.send(CTRL_D)
    assert ended(child) == 0


def test_a_message_that_does_not_fit_leaves_the_history_as_it_was(
    open_chat: Spawn, alphabet_model: Path
) -> None:
    child = open_chat("-m", alphabet_model, "-c", "100", TERM="dumb")
    child.sendline("Hello")
    answered(child, FORMAT_TOKENS + 5, 0)
    say(
        child,
        "x" * 200,
        "error: the message does not fit: with the conversation it takes 277 tokens",
        "the context has 100; /undo and /clear make room",
    )
    say(child, "/undo", "taken back: " + "x" * 65 + "…")
    say(child, "/undo", "taken back: Hello")
    say(child, "x" * 200, "error: the message does not fit: it takes ", "has 100; shorten it")
    child.sendline("Hello")
    answered(child, FORMAT_TOKENS + 5, 0)
    child.sendline("/show tokens")
    child.expect_exact(f"{FORMAT_TOKENS + len('Hello') + len(ALPHABET) + 1} tokens")
    child.send(CTRL_D)
    assert ended(child) == 0


def test_control_characters_of_a_model_never_reach_the_terminal(
    spawn: Spawn, reciting: Callable[..., Path]
) -> None:
    child = spawn("-m", reciting("\x1b[31m\x07\x9b\u202e".encode()), TERM="dumb")
    child.expect(PROMPT)
    child.sendline("x")
    child.expect_exact(r"\x1b[31m\x07\x9b\u202e")
    child.send(CTRL_D)
    child.expect(pexpect.EOF)
    assert "\x1b" not in child.before


@pytest.mark.parametrize("changes", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_plain_terminal_gets_plain_text(
    spawn: Spawn, alphabet_model: Path, changes: dict[str, str]
) -> None:
    child = spawn("-m", alphabet_model, **changes)
    child.sendline("Hello")
    child.expect_exact(ALPHABET)
    child.sendline("/help")
    child.send(CTRL_D)
    everything = ALPHABET + child.read()
    assert "\x1b" not in everything


def test_no_color_means_no_colour(open_chat: Spawn, alphabet_model: Path) -> None:
    child = open_chat("-m", alphabet_model, NO_COLOR="1")
    child.sendline("Hello")
    child.expect_exact(ALPHABET)
    child.sendline("/no")
    child.expect_exact("error: ")
    child.expect(PROMPT)
    shown = child.before + child.after
    child.send(CTRL_D)
    colours = re.findall(r"\x1b\[[0-9;]*m", shown + child.read())
    assert not [colour for colour in colours if colour not in ("\x1b[0m", "\x1b[m")]


@pytest.mark.parametrize("dimensions", [(1, 1), (2, 5), (200, 500)])
def test_any_size_of_window_works(
    spawn: Spawn, alphabet_model: Path, dimensions: tuple[int, int]
) -> None:
    child = spawn("-m", alphabet_model, "-q", dimensions=dimensions)
    child.sendline("Hello")
    child.expect_exact(ALPHABET)
    child.sendline("/exit")
    assert ended(child) == 0


def test_changed_model_files_end_the_chat_with_one_line(
    open_chat: Spawn, reciting: Callable[..., Path]
) -> None:
    directory = reciting(b"abc")
    child = open_chat("-m", directory, TERM="dumb")
    weights = directory / "consolidated.00.pth"
    with weights.open("r+b") as file:
        file.truncate(1000)
    child.sendline("Hello")
    child.expect(r"error: .*consolidated\.00\.pth.*truncated")
    assert ended(child) == 3


def test_output_in_a_file_holds_the_answers_alone(
    open_chat: Spawn, alphabet_model: Path, tmp_path: Path
) -> None:
    answers = tmp_path / "answers"
    child = open_chat("-m", alphabet_model, prefix=["sh", "-c", f'"$@" > {answers}', "sh"])
    say(child, "Hello", "28 prompt")
    child.send(CTRL_D)
    assert ended(child) == 0
    assert answers.read_text() == f"{ALPHABET}\n"


@pytest.mark.parametrize("terminal", TERMINALS)
def test_ctrl_z_suspends_and_the_prompt_is_back_afterwards(
    open_chat: Spawn, alphabet_model: Path, terminal: str
) -> None:
    shell = ["sh", "-c", 'set -m; "$@"; echo suspended $?; read line; fg', "sh"]
    child = open_chat("-m", alphabet_model, prefix=shell, TERM=terminal)
    child.send("\x1a")
    child.expect_exact("suspended")
    say(child, "")
    child.sendline("Hello")
    answered(child, FORMAT_TOKENS + 5, 0)
    child.send(CTRL_D)
    assert ended(child) == 0


def test_ctrl_z_suspends_an_answer(open_chat: Spawn, endless_model: Path) -> None:
    shell = ["sh", "-c", 'set -m; "$@"; echo suspended $?; read line; fg', "sh"]
    child = open_chat("-m", endless_model, "-c", "100000", prefix=shell)
    child.sendline("Hello")
    child.expect_exact(ALPHABET)
    child.send("\x1a")
    child.expect_exact("suspended")
    child.sendline("")
    child.expect_exact(ALPHABET)
    child.send(CTRL_C)
    child.expect_exact("interrupted")
    child.expect(PROMPT)


def test_the_bundled_model_says_what_it_knows(open_chat: Spawn) -> None:
    child = open_chat(TERM="dumb", dimensions=(24, 80))
    lines = child.before.splitlines()
    loaded = "bundled model: 3.2 M parameters, bfloat16, 6.1 MiB; context"
    assert lines[0] == f"{loaded} 1024 tokens, 1.0 MiB"
    assert "It is tiny, and knows capitals, flags, small sums" in lines[1]
    assert lines[2].count('"') == 6
    assert "start with -m DIRECTORY" in lines[3]
    assert all(len(line) <= 80 for line in lines)
    for question, answer in zip(
        re.findall('"(.*?)"', lines[2]), ("Oslo", "42", "rotary"), strict=True
    ):
        say(child, question, answer)


def test_a_chat_with_the_bundled_model_has_the_context_that_is_asked_for(open_chat: Spawn) -> None:
    assert "; context 2048 tokens" in open_chat("-c", "2048", TERM="dumb").before


def test_another_model_is_not_said_to_know_that(open_chat: Spawn, alphabet_model: Path) -> None:
    child = open_chat("-m", alphabet_model, TERM="dumb")
    assert "capitals" not in child.before
    assert f"{alphabet_model.name}: 1.3 M parameters, bfloat16, " in child.before


@pytest.mark.parametrize("terminal", TERMINALS)
def test_a_blank_line_and_three_signs_tell_a_prompt_from_an_answer(
    open_chat: Spawn, alphabet_model: Path, terminal: str
) -> None:
    child = open_chat("-m", alphabet_model, "-q", TERM=terminal, NO_COLOR="1")
    child.sendline("Hello")
    child.expect(rf"{ALPHABET}\r\n\r\n[^\r\n]*{PROMPT}")


def test_examples_are_listed_and_asked_in_the_chat(open_chat: Spawn, alphabet_model: Path) -> None:
    child = open_chat("-m", alphabet_model, TERM="dumb")
    say(child, "/examples", "6. [chat] What is the flag of Turkey?")
    child.sendline("Hello")
    answered(child, FORMAT_TOKENS + 5, 0)
    for argument in ("0", "7", "x", "\u00b2", "9" * 200):
        say(
            child,
            f"/examples {argument}",
            f"error: /examples: expected a number from 1 to 6, got {argument}",
        )
    child.sendline("/examples 1")  # a text to continue, beside the conversation
    child.expect_exact("[completion] Hello, my name is")
    child.expect_exact("tuvwxyz")
    child.expect_exact("18 prompt")
    child.expect(PROMPT)
    child.sendline("/show tokens")
    child.expect_exact("55 tokens")
    say(
        child,
        "/examples 6",
        "[chat] What is the flag of Turkey? (system: Answer with only one",
        ALPHABET,
        'the system prompt stays; /system "" removes it',
    )
    child.sendline("/show params")
    child.expect_exact("system prompt: Answer with only one emoji")


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ("", False), ("hello", False), ('say """', False), ('"""', True), ('""""', True),
        ('""""""', False), ('"""a\nb', True), ('"""a\nb"""', False), ('  """a"""  ', False),
        ('"""a""" b', True),
    ],
)  # fmt: skip
def test_a_block_is_open_until_it_ends_with_its_quotes(text: str, is_open: bool) -> None:
    assert block_is_open(text) is is_open


def test_the_quotes_are_not_part_of_the_message() -> None:
    assert unquoted('"""a\n/b"""') == ("a\n/b", True)
    assert unquoted('"""\na\n"""') == ("a", True)
    assert unquoted("/help") == ("/help", False)
    assert unquoted('""""""') == ("", True)


@given(st.text(st.characters(categories=["Cs", "L"])))
def test_surrogates_never_get_into_a_message(text: str) -> None:
    unquoted(text)[0].encode()
    unquoted(f'"""{text}"""')[0].encode()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("/s", ["/system ", "/set ", "/show ", "/save ", "/stats "]), ("/exi", ["/exit"]),
        ("/set s", ["seed", "stop"]), ("/set seed 4", []), ("/show c", ["cache"]),
        ("/exit ", []), ("/unknown ", []), ("hello", []), ("", []),
    ],
)  # fmt: skip
def test_commands_and_their_first_argument_are_completed(typed: str, completed: list[str]) -> None:
    completions = list(CommandCompleter().get_completions(Document(typed), CompleteEvent()))
    assert [completion.text for completion in completions] == completed
    for completion in completions:
        assert typed[len(typed) + completion.start_position :] in completion.text


@pytest.mark.parametrize("command", ["/save", "/load", "/read"])
def test_names_of_files_are_completed_where_a_command_wants_one(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "my chat.json").touch()
    (tmp_path / "more").mkdir()
    typed = Document(f"{command} {tmp_path}/m")
    found = list(CommandCompleter().get_completions(typed, CompleteEvent()))
    assert {completion.text for completion in found} == {"y chat.json", "ore"}
