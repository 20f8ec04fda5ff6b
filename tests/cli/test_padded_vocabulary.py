"""A model may have more rows than its tokenizer has tokens: these ids decode to nothing."""

from pathlib import Path

import pytest

from src.inference import InferenceEngine, Message, SamplingArgs
from src.model import Model, load_model
from tests.cli.conftest import Run
from tests.cli.reciting_model import EOT_ID, VOCABULARY, write_padded_directory
from tests.cli.test_commands import reply
from tests.cli.test_session import session_of

ROWS = VOCABULARY + 8
# Two such ids at the beginning, one in the middle of a character of two bytes, and the last row.
ANSWER = [VOCABULARY, VOCABULARY + 1, *b"a\xc3", VOCABULARY + 2, *b"\xa9b", ROWS - 1]
TEXT = "a\u00e9b"
SAMPLING = [SamplingArgs(temperature=0.0), SamplingArgs(temperature=0.8, seed=5)]


@pytest.fixture(scope="module")
def padded_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_padded_directory(tmp_path_factory.mktemp("padded"), ANSWER, ROWS)


@pytest.fixture(scope="module")
def model(padded_model: Path) -> Model:
    return load_model(padded_model)


@pytest.mark.parametrize("sampling", SAMPLING, ids=["greedy", "sampled"])
def test_it_can_be_drawn_and_adds_nothing_to_the_text(model: Model, sampling: SamplingArgs) -> None:
    engine, tokenizer = InferenceEngine(model, 64), model.tokenizer
    assert tokenizer is not None
    prompt = tokenizer.encode("x\n", bos=True, eos=False)
    for steps in (
        list(engine.generate(prompt, sampling=sampling)),
        list(engine.generate([*prompt, ROWS - 1, 10], sampling=sampling)),
        list(engine.chat([Message("user", "x")], sampling=sampling, chat_format="llama3")),
    ):
        assert [step.token_id for step in steps] == [*ANSWER, EOT_ID]
        assert "".join(step.text for step in steps) == TEXT
        assert steps[-1].stop_reason == "eot"
        assert tokenizer.decode([step.token_id for step in steps[:-1]]) == TEXT


def test_no_text_becomes_such_an_id_and_none_is_beyond_the_rows(model: Model) -> None:
    tokenizer = model.tokenizer
    assert tokenizer is not None
    assert tokenizer.vocab_size == ROWS
    assert max(tokenizer.encode("any text \u00e9", bos=True, eos=True)) < VOCABULARY
    assert not tokenizer.is_special(ROWS - 1)
    with pytest.raises(Exception, match=f"got id {ROWS}, V = {ROWS}"):
        tokenizer.decode([ROWS])


@pytest.mark.parametrize("flags", [["--temperature", "0"], ["--seed", "5"]])
def test_the_program_answers(run: Run, padded_model: Path, flags: list[str]) -> None:
    done = run("-m", padded_model, "-p", "x", "-c", "64", *flags)
    assert (done.returncode, done.stdout.decode()) == (0, TEXT + "\n")


def test_the_chat_goes_on_after_it(padded_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = session_of(padded_model, "-c", "300", "--seed", "3")
    for _ in range(2):
        session.ask("Hello")
        assert session.turns[-1].answer == TEXT
    assert "97 'a'" in reply(capsys, session, "/show tokens")
