from pathlib import Path

from src.cli.commands import run_command
from src.cli.examples import EXAMPLES, example_lines
from tests.cli.conftest import ALPHABET, Run
from tests.cli.test_session import session_of


def test_there_are_the_six_prompts_of_the_source_engine() -> None:
    assert len(EXAMPLES) == 6
    assert [example.completion for example in EXAMPLES] == [True] + [False] * 5
    assert all(example.system for example in EXAMPLES[1:])


def test_the_list_counts_from_one_and_shows_prompt_and_system_prompt() -> None:
    assert example_lines()[0] == "1. [completion] Hello, my name is"
    assert example_lines()[5] == (
        "6. [chat] What is the flag of Turkey? (system: Answer with only one emoji)"
    )


def test_without_a_terminal_there_is_a_list_and_no_chat(run: Run, tmp_path: Path) -> None:
    done = run("--examples", "-m", tmp_path, stdin=b"1\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == example_lines()


def test_an_example_of_the_other_kind_is_asked_beside_the_conversation(
    alphabet_model: Path,
) -> None:
    for flags, number in (((), "1"), (("--completion",), "6")):
        session = session_of(alphabet_model, "-c", "300", *flags)
        session.ask("Hello" if not flags else "see a")
        turns = session.turns
        run_command(session, f"/examples {number}")
        assert session.turns is turns
        assert session.system is None
        assert session.last is not None
        assert session.last.answer.text == ("tuvwxyz" if number == "1" else ALPHABET)
