"""`/why`: why an answer stopped and what was cut, for each reason there is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from src.cli.answer import INTERRUPTED
from src.cli.session import Session
from tests.cli.test_commands import reply
from tests.cli.test_session import interrupt_after, session_of

Capture = pytest.CaptureFixture[str]


def why(session: Session, capsys: Capture) -> list[str]:
    return reply(capsys, session, "/why").splitlines()


def test_before_the_first_answer_there_is_nothing_to_tell(
    alphabet_model: Path, capsys: Capture
) -> None:
    session = session_of(alphabet_model, "-c", "300")
    assert why(session, capsys) == ["nothing was answered yet"]


def test_an_end_token_is_named(alphabet_model: Path, capsys: Capture) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("Hello")
    assert why(session, capsys) == [
        "eot: the model drew <|eot_id|> (token 265), which ends an answer",
        "cut: nothing, all text is shown",
        "prompt: sent whole, 28 tokens, 0 of them from the cache",
        "context: 55 of 300 positions at the end of the answer",
    ]


def test_a_stop_string_is_what_was_cut(alphabet_model: Path, capsys: Capture) -> None:
    session = session_of(alphabet_model, "-c", "300", "--stop", "fgh", "--stop", "zzz")
    session.ask("Hello")
    assert why(session, capsys)[:2] == [
        "stop string: the text came to 'fgh' or 'zzz', which ends an answer",
        "cut: 'fgh', drawn but not shown",
    ]


def test_limits_say_that_the_model_had_not_ended(alphabet_model: Path, capsys: Capture) -> None:
    session = session_of(alphabet_model, "-c", "40", "-n", "3")
    session.ask("Hello")
    assert why(session, capsys)[0] == (
        "max tokens: 3 tokens drawn, as many as max_tokens allows; "
        "the model had not ended its answer; /continue goes on"
    )
    session.clear()
    session.settings = session.settings.changed("max_tokens", "none")
    session.ask("Hello")
    assert why(session, capsys)[0] == (
        "context full: prompt and answer filled all 40 positions of the context; "
        "the model had not ended its answer"
    )
    assert why(session, capsys)[3] == "context: 40 of 40 positions at the end of the answer"


def test_an_interrupt_tells_what_was_drawn_and_not_shown(
    alphabet_model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--stop", "cx")
    with monkeypatch.context() as patch:
        interrupt_after(session, 3, patch)
        assert session.ask("Hello").stop_reason == INTERRUPTED
    assert why(session, capsys)[:2] == [
        "interrupted: Ctrl-C came after 3 tokens; /continue goes on, /regen asks again",
        "cut: 'c', drawn but not shown",  # it might have become a stop string
    ]


def test_an_interrupt_before_anything_was_run_says_so(
    alphabet_model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.ask("Hello")

    def interrupted(*_: object, **_named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(session.tokenizer), "encode", interrupted)
        session.ask("Hello")
    assert why(session, capsys) == [
        "interrupted: Ctrl-C came before anything was run; /continue asks the question again"
    ]


def test_bytes_that_are_no_character_are_named(
    reciting: Callable[..., Path], capsys: Capture
) -> None:
    session = session_of(reciting(b"a\xf0\x9f"), "-c", "300")
    assert session.ask("x").text == "a\ufffd"
    assert why(session, capsys)[1:3] == [
        "cut: nothing, all text is shown",
        "bytes that are no character are shown as U+FFFD, the first: f0 9f",
    ]


def test_no_control_character_is_shown(reciting: Callable[..., Path], capsys: Capture) -> None:
    session = session_of(reciting(b"a\x1b[\x07b"), "-c", "300", "--stop", "\x1b[\x07")
    session.ask("x")
    shown = "".join(why(session, capsys))
    assert r"\x1b[\x07" in shown
    assert "\x1b" not in shown


def test_of_an_answer_that_went_on_all_tokens_count(alphabet_model: Path, capsys: Capture) -> None:
    session = session_of(alphabet_model, "-c", "300", "-n", "3", "--stop", "hij")
    session.ask("Hello")
    session.settings = session.settings.changed("max_tokens", "none")
    session.resume()
    assert session.turns[-1].answer == "abcdefg"
    assert why(session, capsys)[:2] == [
        "stop string: the text came to 'hij', which ends an answer",
        "cut: 'hij', drawn but not shown",
    ]
