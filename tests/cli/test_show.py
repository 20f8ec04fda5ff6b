from pathlib import Path

import pytest

from src.cli.commands import run_command
from src.cli.errors import UsageError
from tests.cli.test_commands import reply
from tests.cli.test_session import session_of


def test_show_tells_about_each_topic(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    for topic in ("prompt", "tokens"):
        assert reply(capsys, session, f"/show {topic}") == "nothing was said yet\n"
    session.ask("Hello")
    assert str(alphabet_model) in reply(capsys, session, "/show model")
    params = reply(capsys, session, "/show params")
    assert "seed           3" in params
    assert "chat format: llama3 (by special tokens)" in params
    prompt = reply(capsys, session, "/show prompt")
    assert prompt.startswith("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello")
    assert prompt.endswith("Hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n\n")
    tokens = reply(capsys, session, "/show tokens")
    assert "256 '<|begin_of_text|>'" in tokens
    assert "72 'H'" in tokens
    assert "54 of 300 positions" in reply(capsys, session, "/show cache")


def test_show_refuses_what_it_does_not_know(alphabet_model: Path) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    for line in ("/show", "/show weather"):
        with pytest.raises(UsageError, match="model, params, prompt, cache, tokens"):
            run_command(session, line)


def test_show_escapes_bytes_that_are_no_character(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    session.system = "é\x1b"
    shown = reply(capsys, session, "/show tokens")
    assert r"\xc3" in shown
    assert "\x1b" not in shown + reply(capsys, session, "/show prompt")
