from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from src.cli.line_editor import CommandCompleter

WORDS = {"/set": ("seed", "stop", "temperature"), "/show": ("model",), "/exit": ()}


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("/", ["/set ", "/show ", "/exit"]),
        ("/s", ["/set ", "/show "]),
        ("/set s", ["seed", "stop"]),
        ("/set ", ["seed", "stop", "temperature"]),
        ("/set seed 4", []),
        ("/exit ", []),
        ("/unknown ", []),
        ("hello", []),
        ("", []),
    ],
)
def test_commands_and_their_first_argument_are_completed(typed: str, completed: list[str]) -> None:
    completions = list(CommandCompleter(WORDS).get_completions(Document(typed), CompleteEvent()))
    assert [completion.text for completion in completions] == completed
    for completion in completions:
        assert typed[len(typed) + completion.start_position :] in completion.text


def test_names_of_files_are_completed_where_a_command_wants_one(tmp_path: Path) -> None:
    (tmp_path / "my chat.json").touch()
    (tmp_path / "more").mkdir()
    typed = Document(f"/save {tmp_path}/m")
    found = list(CommandCompleter({"/save": None}).get_completions(typed, CompleteEvent()))
    assert {completion.text for completion in found} == {"y chat.json", "ore"}
    (named,) = CommandCompleter({"/save": None}).get_completions(Document("/s"), CompleteEvent())
    assert named.text == "/save "
