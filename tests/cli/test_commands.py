"""Every command of the chat, typed in a pseudo-terminal, on the bundled model."""

import json
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from src.cli.answer import INTERRUPTED
from src.cli.commands import COMMANDS, LeaveChat, is_command, run_command
from src.cli.console import UsageError
from src.cli.session import Session
from src.inference import SamplingError
from src.memory import readable_bytes
from tests.cli.conftest import (
    CTRL_C,
    CTRL_D,
    PROMPT,
    TERMINALS,
    Spawn,
    Typed,
    ended,
    interrupt_after,
    reply,
    session_of,
)


def test_a_command_is_a_single_line_that_starts_with_a_slash() -> None:
    assert is_command("/help")
    assert not is_command("/usr/bin\n/usr/lib")
    assert not is_command("1/2")
    assert not is_command("exit the room")


def test_help_lists_every_command(session: Session, typed: Typed) -> None:
    text = typed("/help")
    for name in (*COMMANDS, "Ctrl-C", "Ctrl-D", '"""'):
        assert f"\n{name} " in f"\n{text}"
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("/regne", "/regen"), ("/bogus", ""), ("/", ""), ("/HELP", "/help"),
        ("/sytem x", "/system, /set"), ("/temperature 1", "/set temperature VALUE"),
        ("/top-p", "/set top_p VALUE"), ("/temp 0", "/set temperature VALUE"),
    ],
)  # fmt: skip
def test_an_unknown_command_is_one_line_with_near_names(
    session: Session, line: str, near: str
) -> None:
    with pytest.raises(UsageError) as raised:
        run_command(session, line)
    message = f"no command {line.split()[0]}"
    message += f": near it {near}" if near else ""
    assert str(raised.value) == f"{message}; /help lists them all"


@pytest.mark.parametrize("line", ["/exit", "/exit ", "/bye", "/quit", "exit", "quit", " quit "])
def test_exit_leaves_by_any_of_its_names(session: Session, line: str) -> None:
    assert is_command(line)
    with pytest.raises(LeaveChat):
        run_command(session, line)


def test_system_sets_shows_and_removes_the_prompt(session: Session, typed: Typed) -> None:
    assert typed("/system") == "system prompt: none\n"
    assert typed("/system Be  short. ") == "system prompt: Be  short.\n"
    assert session.system == "Be  short."
    assert typed('/system ""') == "system prompt: none\n"
    assert session.system is None


def test_set_without_a_value_shows_what_is_set(session: Session, typed: Typed) -> None:
    assert typed("/set top-k") == "top_k             50\n"
    assert typed("/set").splitlines() == session.settings.lines()


@pytest.mark.parametrize("line", ["/set x", "/set x 1", "/set temperature x"])
def test_a_wrong_set_changes_nothing(session: Session, line: str) -> None:
    before = session.settings
    with pytest.raises(UsageError):
        run_command(session, line)
    with pytest.raises(SamplingError):
        run_command(session, "/set top_p 7")
    assert session.settings == before


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not command.usage])
def test_a_command_without_arguments_refuses_them(session: Session, name: str) -> None:
    session.ask("one")
    with pytest.raises(UsageError, match=f"{name} takes nothing after it: got now"):
        run_command(session, f"{name} now ")
    assert len(session.turns) == 1


def test_tokens_shows_ids_bytes_and_pieces_of_a_text_as_it_was_typed(
    session: Session, typed: Typed
) -> None:
    assert typed("/tokens  \u00e9\x1b") == (
        "    id  bytes  text\n"
        "0   32  20     ' '\n"
        "1  195  c3     '\\xc3'\n"
        "2  169  a9     '\\xa9'\n"
        "3   27  1b     '\\x1b'\n"
        "4 tokens, 3 characters, 4 bytes\n"
    )
    assert "special" not in typed("/tokens <|eot_id|>")
    with pytest.raises(UsageError, match="wants a text"):
        run_command(session, "/tokens")


def test_there_is_no_system_prompt_in_a_completion(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3", "--completion")
    with pytest.raises(UsageError, match="no system prompt"):
        run_command(session, "/system Be short.")


FLAGS = ("--temperature", "0", "--seed", "1")


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
    typist.type("/trace", "trace: off")
    typist.type("/help", "/why", "Ctrl-D")
    typist.type("/system You are a pirate", "system prompt: You are a pirate")
    typist.type("/clear", "the conversation starts anew; the system prompt stays")
    typist.type('/system ""', "system prompt: none")
    typist.type("What is the capital of Turkey?", "Ankara.", "eot")
    typist.type("/regen", "Ankara.", "(21 cached)")
    typist.type("/why", "eot: the model drew <|eot_id|>", "cut: nothing", "prompt: sent whole")
    typist.type("/show model", "3.2 M parameters")
    typist.type("/show params", "temperature       0.0", "chat format: llama3")
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
    typist.type("/stats", "statistics after each answer: off")
    typist.type("/stats on", "statistics after each answer: on")
    typist.type("/stats", "statistics after each answer: on")
    typist.type("/tokens Hello", "id", "48 65 6c 6c 6f", "'Hello'", "1 token, ")
    typist.type("/set max_tokens 2", "max_tokens        2")
    typist.type("/probs 2", "candidates: the 2 most probable")
    typist.type("Hello", "temperature 0", "* ", "100.00%", "tokens have a chance", "max tokens")
    typist.type("/probs off", "candidates: off")
    typist.type("/continue", "max tokens", "/continue goes on")
    page = tmp_path / "page.html"
    typist.type(f"/explore {page}", "page.html: ", "to be opened in a browser")
    typist.type("/examples", "2. [chat] Describe your theory. (system: You are Einstein)")
    typist.type("/trace on", f"trace: {log}")
    typist.type("/trace", f"trace: {log}")
    typist.type("Hello", "max tokens")
    typist.type("/trace off", "trace: off")
    typist.type("/trace", "trace: off")
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
        ("/stats maybe", "error: /stats wants on or off"),
        ("/trace maybe", "error: /trace wants on or off"),
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
    typist.child.expect(PROMPT)
    typist.child.send(CTRL_D)
    assert ended(typist.child) == 0


def test_show_tells_about_each_topic(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    for topic in ("prompt", "tokens"):
        assert reply(capsys, session, f"/show {topic}") == "nothing was said yet\n"
    session.ask("Hello")
    assert str(alphabet_model) in reply(capsys, session, "/show model")
    params = reply(capsys, session, "/show params")
    assert "seed              3" in params
    assert "chat format: llama3 (by special tokens)" in params
    prompt = reply(capsys, session, "/show prompt")
    assert prompt.startswith("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello")
    assert prompt.endswith("Hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n\n")
    tokens = reply(capsys, session, "/show tokens")
    assert "\n 0  256  special  <|begin_of_text|>\n" in tokens
    assert "\n 9   72  48       'H'\n" in tokens
    assert tokens.endswith("\n55 tokens\n")


def test_show_cache_counts_positions_layers_bytes_and_what_was_reused(
    session: Session, typed: Typed
) -> None:
    assert "0 of 300" in typed("/show cache")
    session.ask("Hello")
    session.ask("again")
    context = session.engine.context
    per_token = context.nbytes // context.caches[0].capacity
    assert typed("/show cache").splitlines() == [
        "positions: 108 of 300 hold keys and values",
        "layers: 1, each with keys and values of 2 heads of 128 numbers in bfloat16",
        f"bytes: {readable_bytes(108 * per_token)} in use of {readable_bytes(context.nbytes)}; "
        f"{per_token} a position, 1 layer * {per_token}",
        "reuse: of the last prompt's 82 tokens, 54 were in the cache and 28 were run; "
        "27 new ones were drawn",
        "the conversation takes 109 tokens, of which the first 108 need not be run again",
    ]
    session.undo()
    assert "takes 55 tokens, of which the first 55 need" in typed("/show cache")
    session.system = "short"
    shown = typed("/show cache")
    assert "of which the first 2 need not be run again" in shown  # up to the role


def test_show_params_tells_what_the_next_answer_comes_with(session: Session, typed: Typed) -> None:
    session.candidates, session.attached = 4, "some text"
    shown = typed("/show params")
    assert "candidates shown of each token: 4" in shown
    assert "to go before the next message: 9 characters" in shown


def test_show_escapes_bytes_that_are_no_character(session: Session, typed: Typed) -> None:
    session.system = "é\x1b"
    shown = typed("/show tokens")
    assert r"\xc3" in shown
    assert "\x1b" not in shown + typed("/show prompt")


def test_before_the_first_answer_there_is_nothing_to_tell(session: Session, typed: Typed) -> None:
    assert typed("/why").splitlines() == ["nothing was answered yet"]


def test_an_end_token_is_named(session: Session, typed: Typed) -> None:
    session.ask("Hello")
    assert typed("/why").splitlines() == [
        "eot: the model drew <|eot_id|> (token 265), which ends an answer",
        "cut: nothing, all text is shown",
        "prompt: sent whole, 28 tokens, 0 of them from the cache",
        "context: 55 of 300 positions at the end of the answer",
    ]


def test_a_stop_string_is_what_was_cut(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--stop", "fgh", "--stop", "zzz")
    session.ask("Hello")
    assert reply(capsys, session, "/why").splitlines()[:2] == [
        "stop string: the text came to 'fgh' or 'zzz', which ends an answer",
        "cut: 'fgh', drawn but not shown",
    ]


def test_limits_say_that_the_model_had_not_ended(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "40", "-n", "3")
    session.ask("Hello")
    assert reply(capsys, session, "/why").splitlines()[0] == (
        "max tokens: 3 tokens drawn, as many as max_tokens allows; "
        "the model had not ended its answer; /continue goes on"
    )
    session.clear()
    session.settings = session.settings.changed("max_tokens", "none")
    session.ask("Hello")
    assert reply(capsys, session, "/why").splitlines()[0] == (
        "context full: prompt and answer filled all 40 positions of the context; "
        "the model had not ended its answer"
    )
    assert (
        reply(capsys, session, "/why").splitlines()[3]
        == "context: 40 of 40 positions at the end of the answer"
    )


def test_an_interrupt_tells_what_was_drawn_and_not_shown(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--stop", "cx")
    with monkeypatch.context() as patch:
        interrupt_after(session, 3, patch)
        assert session.ask("Hello").stop_reason == INTERRUPTED
    assert reply(capsys, session, "/why").splitlines()[:2] == [
        "interrupted: Ctrl-C came after 3 tokens; /continue goes on, /regen asks again",
        "cut: 'c', drawn but not shown",  # it might have become a stop string
    ]


def test_an_interrupt_before_anything_was_run_says_so(
    session: Session, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.ask("Hello")

    def interrupted(*_: object, **_named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(session.tokenizer), "encode", interrupted)
        session.ask("Hello")
    assert typed("/why").splitlines() == [
        "interrupted: Ctrl-C came before anything was run; /continue asks the question again"
    ]


def test_bytes_that_are_no_character_are_named(
    reciting: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(reciting(b"a\xf0\x9f"), "-c", "300")
    assert session.ask("x").text == "a\ufffd"
    assert reply(capsys, session, "/why").splitlines()[1:3] == [
        "cut: nothing, all text is shown",
        "bytes that are no character are shown as U+FFFD, the first: f0 9f",
    ]


def test_no_control_character_is_shown(
    reciting: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(reciting(b"a\x1b[\x07b"), "-c", "300", "--stop", "\x1b[\x07")
    session.ask("x")
    shown = "".join(reply(capsys, session, "/why").splitlines())
    assert r"\x1b[\x07" in shown
    assert "\x1b" not in shown


def test_of_an_answer_that_went_on_all_tokens_count(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "-n", "3", "--stop", "hij")
    session.ask("Hello")
    session.settings = session.settings.changed("max_tokens", "none")
    session.resume()
    assert session.turns[-1].answer == "abcdefg"
    assert reply(capsys, session, "/why").splitlines()[:2] == [
        "stop string: the text came to 'hij', which ends an answer",
        "cut: 'hij', drawn but not shown",
    ]
