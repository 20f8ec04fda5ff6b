"""The chat format in the terminal: found, named with a flag, or refused before a question."""

import json
import shutil
from pathlib import Path

import pytest

from src.inference import CHAT_FORMATS
from tests.cli.conftest import ALPHABET, Run
from tests.cli.test_commands import reply
from tests.cli.test_session import session_of

UNKNOWN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture
def with_template(alphabet_model: Path, tmp_path: Path) -> Path:
    """The model of the alphabet with a chat template that the table does not know."""
    directory = tmp_path / "model"
    shutil.copytree(alphabet_model, directory)
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": UNKNOWN}))
    return directory


def test_show_prompt_tells_what_was_sent_in_the_named_format(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--chat-format", "zephyr")
    session.system = "Be brief."
    session.ask("Hello")
    assert reply(capsys, session, "/show prompt") == (
        "<|system|>\nBe brief.<|end_of_text|>\n<|user|>\nHello<|end_of_text|>\n<|assistant|>\n\n"
    )
    assert "chat format: zephyr (by --chat-format)" in reply(capsys, session, "/show params")


def test_a_question_without_an_answer_leaves_no_trace_in_show_prompt(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300")
    session.unanswered = "one"
    assert reply(capsys, session, "/show prompt") == "nothing was said yet\n"
    session.ask("two")
    prompt = reply(capsys, session, "/show prompt")
    session.unanswered = "three"
    assert reply(capsys, session, "/show prompt") == prompt
    assert "two" in prompt
    session.ask("four")
    prompt = reply(capsys, session, "/show prompt")
    assert prompt.index("two") < prompt.index(ALPHABET) < prompt.index("four")


def test_show_prompt_of_a_completion_is_its_text(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "--completion")
    session.ask("Once")
    assert reply(capsys, session, "/show prompt") == "<|begin_of_text|>Once\n"
    assert "chat format" not in reply(capsys, session, "/show params")


def test_an_unknown_template_is_refused_in_one_line_that_names_the_flag(
    run: Run, with_template: Path
) -> None:
    outcome = run("-m", with_template, "-p", "Hello")
    assert outcome.returncode == 2
    assert outcome.stdout == b""
    (line,) = outcome.stderr.decode().splitlines()
    assert "has a chat template that is not among the known ones" in line
    assert "--chat-format" in line
    assert "--completion" in line
    assert all(name in line for name in CHAT_FORMATS)


def test_with_the_flag_or_as_a_completion_the_same_model_answers(
    run: Run, with_template: Path
) -> None:
    for flags in (("--chat-format", "llama3"), ("--completion",)):
        outcome = run("-m", with_template, "-q", "-p", "Hello\n", *flags)
        assert (outcome.returncode, outcome.stdout) == (0, f"{ALPHABET}\n".encode())


def test_a_format_whose_tokens_the_tokenizer_lacks_is_refused_by_name(
    run: Run, alphabet_model: Path
) -> None:
    outcome = run("-m", alphabet_model, "-p", "Hello", "--chat-format", "chatml")
    assert outcome.returncode == 2
    (line,) = outcome.stderr.decode().splitlines()
    assert "<|im_start|>" in line


def test_a_damaged_configuration_of_the_tokenizer_is_a_bad_model(
    run: Run, with_template: Path
) -> None:
    (with_template / "tokenizer_config.json").write_text("{")
    outcome = run("-m", with_template, "-p", "Hello")
    assert outcome.returncode == 3
    assert b"text: expected JSON" in outcome.stderr


def test_verbose_tells_the_format_and_what_told_it(run: Run, alphabet_model: Path) -> None:
    done = run("-m", alphabet_model, "-c", "64", "-p", "x", "-v")
    assert b"; chat format llama3 by special tokens; " in done.stderr
    assert b"chat format" not in run("-m", alphabet_model, "-c", "64", "-p", "x").stderr
