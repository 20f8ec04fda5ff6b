"""The chat in a pseudo-terminal: with the line editor, and on a plain terminal."""

import io
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.layout.processors import TransformationInput

from src.cli.chat import (
    CommandCompleter,
    EscapeControls,
    block_is_open,
    ends_in_a_loop,
    unquoted,
)
from src.untrusted import escape_line
from tests.cli.conftest import (
    ALPHABET,
    EITHER,
    FORMAT_TOKENS,
    SECONDS_TO_STOP,
    TERMINALS,
    Terminal,
)

WITH_EDITOR = pytest.mark.parametrize("chat", ["xterm-256color"], indirect=True)
CONTINUATION = r"\.\.\."


def answered(child: Terminal, question: str = "Hello", typed: str | None = None) -> None:
    """Asks the alphabet model in a new chat; waits for its answer,
    statistics and prompt.
    """
    statistics = f"{FORMAT_TOKENS + len(question)} prompt"
    child.say(question if typed is None else typed, ALPHABET, statistics)


@pytest.fixture(scope="module")
def chats(alphabet_model: Path) -> Iterator[dict[str, Terminal]]:
    """A chat in a terminal of each kind, for all tests."""
    opened = {name: Terminal("-m", alphabet_model, TERM=name) for name in TERMINALS}
    yield opened
    for child in opened.values():
        child.close(force=True)


@pytest.fixture(params=TERMINALS)
def chat(request: pytest.FixtureRequest, chats: dict[str, Terminal]) -> Terminal:
    """A chat in which nothing was said yet."""
    chats[request.param].say("/clear", "cleared")
    return chats[request.param]


def test_messages_are_answered_and_the_second_turn_uses_the_cache(chat):
    answered(chat)
    prompt = FORMAT_TOKENS + len("Hello")
    whole_turn = prompt + len(ALPHABET) + 1
    # The end of the first answer was never run: it is read with what follows it.
    new = FORMAT_TOKENS - 1 + len("again")
    chat.say("again", f"{whole_turn + new} prompt ({whole_turn - 1} cached)")


@pytest.mark.parametrize(
    ("terminal", "typed"), [("xterm-256color", ""), ("dumb", '"""one\r')]
)
def test_ctrl_d_leaves_at_once(open_chat, alphabet_model, terminal, typed):
    child = open_chat("-m", alphabet_model, TERM=terminal)
    child.send(typed)
    if typed:
        child.expect(CONTINUATION)
    assert child.code("d") == 0


def test_what_is_empty_or_dropped_by_ctrl_c_asks_nothing(chat):
    chat.say("")
    chat.say("  ")
    chat.press_ctrl("c", "Ctrl-D or /exit leaves")
    chat.send("not this")
    chat.expect_exact("not this")
    chat.press_ctrl("c")
    answered(chat)


def test_triple_quotes_hold_a_message_of_several_lines(chat):
    for line in ('"""one\r', "/exit\r"):
        chat.send(line)
        chat.expect(CONTINUATION)
    answered(chat, "one\n/exit\nthree", typed='three"""')


@WITH_EDITOR
def test_a_pasted_block_is_one_message(chat):
    chat.send("\x1b[200~/one\rtwo\rthree\x1b[201~")
    chat.expect_exact("three")
    answered(chat, "/one\ntwo\nthree", typed="")


@WITH_EDITOR
def test_escape_sequences_that_are_typed_do_not_end_the_chat(chat):
    for typed in ("\x1b[31m", "\x1b[<0;0m", "\x1b[M abc", "\x1b[1;1R", "\x1bx\x00"):
        chat.say(f"a{typed}b", ALPHABET)


@WITH_EDITOR
def test_the_line_editor_recalls_what_was_typed(chat):
    answered(chat)
    chat.say("/clear", "cleared")
    answered(chat, typed="\x1b[A\x1b[A")


@pytest.mark.parametrize("terminal", TERMINALS)
def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(open_chat, endless_model, terminal):
    child = open_chat("-m", endless_model, "-c", "100000", TERM=terminal)
    for _ in range(2):
        child.sendline("Hello")
        child.expect_exact(ALPHABET * 2)
        started = time.monotonic()
        child.press_ctrl("c", "interrupted")
        assert time.monotonic() - started < SECONDS_TO_STOP
        child.say("/undo", "removed: Hello")
    child.say("/show prompt", "the conversation is empty")
    child.say("/set max_tokens 5")
    child.say("Hello", "28 prompt (27 cached)")


def test_a_message_that_does_not_fit_leaves_the_history_as_it_was(
    open_chat, alphabet_model
):
    child = open_chat("-m", alphabet_model, "-c", "100", TERM="dumb")
    answered(child)
    refused = "error: the message does not fit: with the conversation it takes 277 tokens"
    child.say("x" * 200, refused, "the context has 100; /undo and /clear make room")
    child.say("/undo", "removed: Hello")
    child.say("/undo", "error: /undo: expected a question to remove, got none")
    child.say(
        "x" * 200, "error: the message does not fit: it takes ", "has 100; shorten it"
    )
    answered(child)
    child.say(
        "/show tokens", f"{FORMAT_TOKENS + len('Hello') + len(ALPHABET) + 1} tokens"
    )


def test_a_full_context_drops_the_oldest_turns_and_says_so(open_chat, alphabet_model):
    child = open_chat(
        "-m", alphabet_model, "-c", "150", "--overflow", "drop", TERM="dumb"
    )
    answered(child)
    child.say("Hello", ALPHABET)
    child.say("Hello", "context full: the oldest turn is dropped, 1 turn kept", ALPHABET)
    child.say(
        "x" * 200, "error: the message does not fit: it takes ", "has 150; shorten it"
    )
    child.say("/set overflow refuse", "overflow          refuse")
    refused = "error: the message does not fit: with the conversation it takes "
    child.say("x" * 90, refused, "/set overflow drop drops the oldest turns")
    child.say("/set overflow none", "error: overflow: must be refuse, drop: got none")


def test_an_answer_that_fills_the_context_goes_on_where_turns_are_dropped(
    open_chat, endless_model
):
    child = open_chat("-m", endless_model, "-c", "160", "--overflow", "drop", TERM="dumb")
    child.say("Hello", "160/160, context full", "the next message drops this turn")
    child.say("/set max_tokens 10", "max_tokens        10")
    child.say(
        "Hello",
        "context full: the oldest turn is dropped, 0 turns kept",
        "/continue goes on",
    )
    child.say("/set max_tokens none", "max_tokens        none")
    child.say(
        "Hello", "160/160, context full", "/continue goes on without the oldest turns"
    )
    dropped = "context full: the oldest turn is dropped, 0 turns kept"
    child.say("/continue", dropped, "160/160, context full")


def test_an_answer_that_repeats_itself_gets_a_hint(open_chat, endless_model):
    child = open_chat("-m", endless_model, "-c", "400", "-n", "104", TERM="dumb")
    hint = "/set repeat_penalty 1.1 makes that less likely"
    child.say("Hello", "/continue goes on", hint)
    child.say("/set repeat_penalty 1.01")
    child.say("/regen", "/continue goes on")
    assert hint not in child.before
    child.say("/set repeat_penalty 1")
    child.say("/set max_tokens 60")
    child.say("/regen", "/continue goes on")
    assert hint not in child.before


@pytest.mark.parametrize(
    ("ids", "is_loop"),
    [
        ([], False),
        ([1] * 23, False),
        ([1] * 24, True),
        ([9, 9] + [1, 2] * 12, True),
        ([*range(30)] * 3, True),
        ([*range(30)] * 2, False),
        ([*range(30)] * 3 + [5], False),
        ([*range(300)] * 3, False),
        ([5, *range(30), *range(29), *range(30)], False),
    ],
)
def test_a_loop_is_a_passage_that_comes_three_times_at_the_end(ids, is_loop):
    assert ends_in_a_loop(tuple(ids)) is is_loop


@pytest.mark.parametrize("terminal", ["dumb", pytest.param("", marks=pytest.mark.slow)])
def test_a_plain_terminal_gets_plain_text_and_controls_of_a_model_escaped(
    spawn, reciting, terminal
):
    child = spawn("-m", reciting("\x1b[31m\x07\x9b\u202e".encode()), TERM=terminal)
    child.sendline("x")
    child.sendline("/help")
    child.sendeof()
    shown = child.read()
    assert r"\x1b[31m\x07\x9b\u202e" in shown
    assert "/help" in shown
    assert "\x1b" not in shown


def test_no_color_means_no_colour(open_chat, alphabet_model):
    child = open_chat("-m", alphabet_model, NO_COLOR="1")
    shown = child.before
    for line, answer in (("Hello", ALPHABET), ("/no", "error: "), ("/exit", "/exit")):
        child.sendline(line)
        child.expect_exact(answer)
        shown += child.before
    assert set(re.findall(r"\x1b\[[0-9;]*m", shown + child.read())) <= {
        "\x1b[0m",
        "\x1b[m",
    }


def test_any_size_of_window_works(spawn, alphabet_model):
    child = spawn("-m", alphabet_model, "-q", dimensions=(1, 1))
    for rows, columns in ((1, 1), (2, 5), (200, 500)):
        child.setwinsize(rows, columns)
        child.sendline("Hello")
        child.expect_exact(ALPHABET)
    child.sendline("/exit")
    assert child.code() == 0


def test_changed_model_files_end_the_chat_with_one_line(open_chat, reciting):
    directory = reciting(b"abc")
    child = open_chat("-m", directory, TERM="dumb")
    weights = directory / "consolidated.00.pth"
    with weights.open("r+b") as file:
        file.truncate(1000)
    child.sendline("Hello")
    child.expect(r"error: .*consolidated\.00\.pth.*truncated")
    assert child.code() == 3


def test_output_in_a_file_holds_the_answers_alone(open_chat, alphabet_model, tmp_path):
    answers = tmp_path / "answers"
    child = open_chat(
        "-m", alphabet_model, prefix=["sh", "-c", f'"$@" > {answers}', "sh"]
    )
    assert f"{alphabet_model.name}: 1.3 M parameters, bfloat16, " in child.before
    assert "capitals" not in child.before  # which only the bundled model knows
    child.say("Hello", "28 prompt")
    assert child.code("d") == 0
    assert answers.read_text() == f"{ALPHABET}\n"


SHELL = ["sh", "-c", 'set -m; "$@"; echo suspended $?; read line; fg', "sh"]


@pytest.mark.parametrize("terminal", EITHER)
def test_ctrl_z_suspends_and_the_chat_goes_on_afterwards(
    open_chat, alphabet_model, terminal
):
    child = open_chat("-m", alphabet_model, prefix=SHELL, TERM=terminal)
    child.sendcontrol("z")
    child.expect_exact("suspended")
    child.sendline("")
    child.expect_exact("@")  # fg says what goes on
    if terminal != "dumb":  # which waits for the line
        child.shows()
    answered(child)
    child.sendline("/exit")
    child.expect_exact("/exit")
    assert child.code() == 0
    assert "\r\n\r\n" not in child.before


def test_ctrl_z_suspends_an_answer(open_chat, endless_model):
    child = open_chat("-m", endless_model, "-c", "100000", prefix=SHELL)
    child.sendline("Hello")
    child.expect_exact(ALPHABET)
    child.sendcontrol("z")
    child.expect_exact("suspended")
    child.sendline("")
    child.expect_exact(ALPHABET)
    child.press_ctrl("c", "interrupted")


def test_the_bundled_model_says_what_it_knows(open_chat):
    child = open_chat(TERM="dumb", dimensions=(24, 80))
    lines = child.before.splitlines()
    loaded = "bundled model: 3.2 M parameters, bfloat16, 6.1 MiB; context"
    assert lines[0] == f"{loaded} 1024 tokens, 1.0 MiB"
    assert "It is tiny, and knows capitals, flags, small sums" in lines[1]
    assert lines[2].count('"') == 6
    assert "type /model smollm2" in lines[3]
    assert all(len(line) <= 80 for line in lines)
    questions = re.findall('"(.*?)"', lines[2])
    for question, answer in zip(questions, ("Oslo", "42", "rotary"), strict=True):
        child.say(question, answer)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ("", False)),
        ("hello", ("hello", False)),
        ('say """', ('say """', False)),
        ('"""', None),
        ('""""', None),
        ('""""""', ("", True)),
        ('"""a\nb', None),
        ('"""\na\n"""', ("a", True)),
        ('"""a\n/b"""', ("a\n/b", True)),
        ('"""a""" b', None),
        ('  """a"""  ', ("a", True)),
    ],
)
def test_a_block_is_open_until_it_ends_with_its_quotes_which_are_no_part_of_it(
    text, message
):
    assert block_is_open(text) is (message is None)
    if message is not None:
        assert unquoted(text) == message


@given(st.text('a\ud800\udc80\udfff\n"'))
def test_surrogates_never_get_into_a_message(text):
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
def test_commands_and_their_first_argument_are_completed(typed, completed):
    completions = list(
        CommandCompleter().get_completions(Document(typed), CompleteEvent())
    )
    assert [completion.text for completion in completions] == completed
    for completion in completions:
        assert typed[len(typed) + completion.start_position :] in completion.text


@pytest.mark.parametrize("command", ["/save", "/load", "/read"])
def test_names_of_files_are_completed_where_a_command_wants_one(tmp_path, command):
    (tmp_path / "my chat.json").touch()
    (tmp_path / "more").mkdir()
    typed = Document(f"{command} {tmp_path}/m")
    found = list(CommandCompleter().get_completions(typed, CompleteEvent()))
    assert {completion.text for completion in found} == {"y chat.json", "ore"}


# C1, BEL, SO, a bidirectional override and mark, an escape sequence, and a byte that is
# not UTF-8.
HOSTILE = "a\x9b31m\x07\x0e\u202eb\u200f\x1b]0;title\x07\udcff"


def is_harmless(text: str) -> bool:
    return escape_line(text) == text


def test_names_of_files_are_escaped_in_a_list_of_completions(tmp_path):
    for name in (HOSTILE, "a plain name"):
        (tmp_path / name).touch()
    typed = Document(f"/load {tmp_path}/a")
    found = {
        x.text: x.display_text for x in CommandCompleter().get_completions(typed, None)
    }
    assert found[" plain name"] == "a plain name"
    assert found[HOSTILE[1:]] == escape_line(HOSTILE)
    assert all(map(is_harmless, found.values()))


def test_a_hostile_name_is_completed_and_saved_without_a_control_in_the_terminal(
    open_chat, alphabet_model, tmp_path
):
    names = "twin one", f"x{HOSTILE[:-1]}.json", f"y{HOSTILE[:-1]}1", f"y{HOSTILE[:-1]}2"
    for name in names:
        (tmp_path / name).touch()
    child = open_chat("-m", alphabet_model, dimensions=(24, 250))
    shown = io.StringIO()
    child.logfile_read = shown
    child.say("Hello", ALPHABET)
    child.send(f"/save {tmp_path}/x\t")
    child.expect_exact(r"\x9b31m\x07\x0e\u202eb\u200f\x1b]0;title\x07.json")
    child.sendline("")
    child.shows("saved: 1 answer")
    child.send(f"/load {tmp_path}/y\t\t")
    child.expect_exact("title")
    child.expect_exact("title")
    child.sendcontrol("c")
    child.shows()
    assert "Hello" in (tmp_path / names[1]).read_text("utf-8")
    # Of the line editor.
    text = re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~]|[=>])", "", shown.getvalue())
    assert not set("\x9b\x07\x0e\u202e\u200f\x1b") & set(text)


def test_the_line_editor_maps_places_of_escaped_text():
    text = "a\x9bb\u202e"
    drawn = r"a\x9bb\u202e"
    fragments = [("bold", text[:1]), ("", text[1:])]
    line = TransformationInput(None, None, 0, lambda place: place, fragments, 80, 24)
    result = EscapeControls().apply_transformation(line)
    assert "".join(part for _, part in result.fragments) == drawn
    assert [result.source_to_display(i) for i in range(6)] == [0, 1, 5, 6, 12, 13]
    assert [result.display_to_source(i) for i in (0, 1, 2, 4, 5, 6, 11, 12)] == [
        0, 1, 1, 1, 2, 3, 3, 4
    ]  # fmt: skip
    plain = TransformationInput(
        None, None, 0, lambda place: place, [("", "é 漢")], 80, 24
    )
    assert EscapeControls().apply_transformation(plain).fragments == [("", "é 漢")]
