from pathlib import Path

import pytest

from src.cli.commands import run_command
from src.cli.errors import UsageError
from src.memory import readable_bytes
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
    assert "\n 0  256  special  <|begin_of_text|>\n" in tokens
    assert "\n 9   72  48       'H'\n" in tokens
    assert tokens.endswith("\n55 tokens\n")


def test_show_cache_counts_positions_layers_bytes_and_what_was_reused(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    assert "0 of 300" in reply(capsys, session, "/show cache")
    session.ask("Hello")
    session.ask("again")
    context = session.engine.context
    per_token = context.nbytes // context.caches[0].capacity
    assert reply(capsys, session, "/show cache").splitlines() == [
        "positions: 108 of 300 hold keys and values",
        "layers: 1, each with keys and values of 2 heads of 128 numbers in bfloat16",
        f"bytes: {readable_bytes(108 * per_token)} in use of {readable_bytes(context.nbytes)}; "
        f"{per_token} a position, 1 layer * {per_token}",
        "reuse: of the last prompt's 82 tokens, 54 were in the cache and 28 were run; "
        "27 new ones were drawn",
        "the conversation takes 109 tokens, of which the first 108 need not be run again",
    ]
    session.undo()
    assert "takes 55 tokens, of which the first 55 need" in reply(capsys, session, "/show cache")
    session.system = "short"
    shown = reply(capsys, session, "/show cache")
    assert "of which the first 2 need not be run again" in shown  # up to the role


def test_show_params_tells_what_the_next_answer_comes_with(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--seed", "3")
    session.candidates, session.attached = 4, "some text"
    shown = reply(capsys, session, "/show params")
    assert "candidates shown of each token: 4" in shown
    assert "to go before the next message: 9 characters" in shown


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
