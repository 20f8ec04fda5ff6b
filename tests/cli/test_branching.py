"""`/branch` and `--branch`: an answer with another token at a place."""

import pytest

from src.cli.arguments import parse_arguments
from src.cli.commands import run_command
from src.cli.console import UsageError
from src.inference import InferenceEngine, SamplingArgs
from src.model.sources import BUNDLED_MODEL
from tests.cli.conftest import reply, session_of

FLAGS = ("-n", "12", "--temperature", "0")
QUESTION = "What happens in attention?"


def test_a_branch_goes_on_from_another_token(capsys) -> None:
    session = session_of(BUNDLED_MODEL, *FLAGS)
    answer = session.ask(QUESTION)
    turns = list(session.turns)
    listed = reply(capsys, session, "/branch")
    first, second = (session.tokenizer.decode([token]) for token in answer.ids[:2])
    assert listed.split("   ")[:2] == [f"1 {first!r}", f"2 {second!r}"]
    text = reply(capsys, session, "/branch 3  ninety")
    head, *lines, reasons = text.rstrip().splitlines()
    third = session.tokenizer.decode([answer.ids[2]])
    assert head.split("token 3: ")[1].strip() == repr(third)
    left = " ".join(line[:44].strip() for line in lines)
    right = " ".join(line[46:].strip() for line in lines)
    assert left.split() == answer.text.split()
    assert reasons.startswith("(max tokens) ")
    assert session.turns == turns

    # The right column is the answer of an engine that is given the other tokens.
    ids = session.prompt_ids()
    other = [*answer.ids[:2], *session.tokenizer.encode(" ninety")]
    engine = InferenceEngine(session.engine.model, 256)
    steps = engine.generate(
        ids,
        12 - len(other),
        SamplingArgs(temperature=0.0),
        answer_ids=other,
        new_text=True,
    )
    assert right.split() == "".join(step.text for step in steps).split()
    # The token that the model drew gives the answer itself.
    same = reply(capsys, session, f"/branch 3 #{answer.ids[2]}")
    columns = [line[46:].strip() for line in same.rstrip().splitlines()[1:-1]]
    assert " ".join(columns).split() == answer.text.split()


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("0 a", "N from 1 to 12: got 0"),
        ("13 a", "N from 1 to 12: got 13"),
        ("x a", "N from 1 to 12: got x"),
        ("2", "expected a token, got nothing"),
        ("2 #4096", "expected a token id below 4096, got 4096"),
    ],
)
def test_a_wrong_branch_is_one_line(argument: str, words: str) -> None:
    session = session_of(BUNDLED_MODEL, *FLAGS)
    with pytest.raises(UsageError, match="expected an answer, got none yet"):
        run_command(session, "/branch 1 a")
    session.ask(QUESTION)
    with pytest.raises(UsageError, match=words):
        run_command(session, f"/branch {argument}")


def test_a_prompt_has_a_branch_after_its_answer(run) -> None:
    done = run("-p", QUESTION, *FLAGS, "--branch", "3: ninety")
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0
    assert lines[1].startswith("token 3: ")
    assert lines[-1].startswith("(max tokens) ")
    with pytest.raises(SystemExit):
        parse_arguments(["-p", "Hi", "--branch", "0:a"])
