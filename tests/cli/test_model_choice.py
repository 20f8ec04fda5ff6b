"""`/model`: another model answers, and the conversation stays."""

from dataclasses import replace

import pytest

from src.cli.answer import Settings
from src.cli.commands import run_command
from src.cli.console import UsageError
from src.cli.session import Turn
from src.inference import ContextFullError, named_template
from src.ml.errors import LlamaBoltsError
from src.model.sources import BUNDLED_MODEL
from tests.cli.conftest import ALPHABET, interrupt_after, reply, session_of
from tests.cli.test_loading import recommending_model

NORWAY = "What is the capital of Norway? Answer in one word."


def test_another_model_goes_on_with_the_conversation_and_the_settings(session, capsys):
    session.ask("Hello")
    session.system = "Answer briefly."
    session.settings = session.settings.changed("temperature", "0")
    settings = session.settings
    shown = reply(capsys, session, f"/model {BUNDLED_MODEL}")
    assert shown.endswith("model: bundled model; the conversation continues (1 answer)\n")
    assert session.engine.model.source.is_bundled
    assert session.turns == [Turn("Hello", ALPHABET)]
    assert (session.system, session.settings) == ("Answer briefly.", settings)
    session.ask(NORWAY)
    assert capsys.readouterr().out == "Oslo\n"
    assert [turn.question for turn in session.turns] == ["Hello", NORWAY]


def test_settings_that_nobody_changed_are_those_of_the_new_model(session):
    before = session.settings
    run_command(session, f"/model {BUNDLED_MODEL}")
    assert session.settings == before
    assert session.chat_format.name == "llama3"


def test_the_new_model_has_its_own_sampling_but_for_what_was_changed(
    session, tmp_path, capsys
):
    path = recommending_model(tmp_path / "m", temperature=0.3, top_p=0.8)
    session.settings = session.settings.changed("top_p", "0.5").changed(
        "overflow", "drop"
    )
    run_command(session, f"/model {BUNDLED_MODEL}")
    session.settings = session.settings.changed("min_p", "0.1")
    expected = Settings(top_p=0.5, min_p=0.1, overflow="drop", seed=3)
    assert session.settings == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "src.cli.new_session.chat_format_of", lambda *_: named_template("llama3")
        )
        run_command(session, f"/model {path}")
    assert session.settings == replace(expected, temperature=0.3)
    assert "; temperature 0.3, top_p 0.8 (by generation_config.json)" in reply(
        capsys, session, "/model"
    )
    run_command(session, f"/model {BUNDLED_MODEL}")
    assert session.settings == expected


def test_without_a_name_it_says_which_model_answers(session, capsys):
    assert reply(capsys, session, "/model").startswith("alphabet")


def test_an_answer_that_was_stopped_does_not_go_on_with_other_tokens(session):
    with interrupt_after(4):
        session.ask("Hello")
    run_command(session, f"/model {BUNDLED_MODEL}")
    with pytest.raises(UsageError, match="expected an answer that was stopped"):
        session.resume()


@pytest.mark.parametrize("name", ["nowhere", "./nowhere", "/dev/null"])
def test_a_model_that_is_not_there_changes_nothing(session, name):
    session.ask("Hello")
    before = vars(session).copy()
    with pytest.raises(LlamaBoltsError):
        run_command(session, f"/model {name}")
    assert vars(session) == before


def test_a_conversation_that_does_not_fit_changes_nothing(session):
    session.turns = [Turn("x " * 140, "y")]
    session.options = session_of(BUNDLED_MODEL, "-c", "100").options
    before = vars(session).copy()
    with pytest.raises(ContextFullError):
        run_command(session, f"/model {BUNDLED_MODEL}")
    assert vars(session) == before


def test_a_trace_and_a_prompt_cache_belong_to_one_model(alphabet_model, tmp_path):
    session = session_of(alphabet_model, "--debug-log", str(tmp_path / "log"))
    try:
        with pytest.raises(
            UsageError, match=r"^/model: expected the trace to be off, got on; "
        ):
            run_command(session, f"/model {BUNDLED_MODEL}")
        run_command(session, "/trace off")
        run_command(session, f"/model {BUNDLED_MODEL}")
        run_command(session, "/trace on")
        session.settings = session.settings.changed("temperature", "0")
        session.ask(NORWAY)
    finally:
        run_command(session, "/trace off")
    assert "nano" in (tmp_path / "log").read_text("utf-8")
    session = session_of(alphabet_model, "--prompt-cache", str(tmp_path / "cache"))
    with pytest.raises(UsageError, match="expected a chat without --prompt-cache"):
        run_command(session, f"/model {BUNDLED_MODEL}")


def test_a_bundled_chat_has_the_whole_context_of_the_next_model(alphabet_model):
    session = session_of(BUNDLED_MODEL, "-c", "1024")
    vars(session.options)["model"] = None
    run_command(session, f"/model {alphabet_model}")
    assert session.engine.sequence_length == 4096
    assert session.options.model == str(alphabet_model)
