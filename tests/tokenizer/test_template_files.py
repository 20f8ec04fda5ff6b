"""Chat templates of a model directory: where they are read from, and damaged files."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from src.tokenizer import MAX_FILE_BYTES, TokenizerError
from src.tokenizer.template_files import read_chat_templates


def write_template(directory: Path, template: object) -> None:
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template})
    )


def test_templates_are_read_from_each_place_and_files_of_their_own_precede(
    tmp_path: Path,
) -> None:
    assert read_chat_templates(tmp_path) == {}
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    assert read_chat_templates(tmp_path) == {}
    (tmp_path / "chat_template.json").write_text('{"chat_template": "of a processor"}')
    assert read_chat_templates(tmp_path) == {"default": "of a processor"}
    write_template(tmp_path, "of the configuration")
    assert read_chat_templates(tmp_path) == {"default": "of the configuration"}
    tool_use = {"name": "tool_use", "template": "T"}
    write_template(tmp_path, [tool_use, {"name": "default", "template": "D"}])
    assert read_chat_templates(tmp_path) == {"default": "D", "tool_use": "T"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("F")
    assert read_chat_templates(tmp_path) == {"default": "D", "tool_use": "F"}
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").unlink()
    (tmp_path / "chat_template.jinja").write_text("of its own file, ｜", encoding="utf-8")
    assert read_chat_templates(tmp_path) == {"default": "of its own file, ｜"}


def test_a_template_for_tools_alone_is_not_that_of_all_conversations(
    tmp_path: Path,
) -> None:
    write_template(tmp_path, [{"name": "tool_use", "template": "T"}])
    assert read_chat_templates(tmp_path) == {"tool_use": "T"}


ENTRY = "chat_template: expected .*a list of texts, each with its name"


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"{", "expected JSON"),
        (b"[]", "expected a JSON object, got a list"),
        (b'{"chat_template": 5}', "chat_template: expected .*got 5"),
        (
            b'{"chat_template": {"default": "x"}}',
            "chat_template: expected .*got an object",
        ),
        (b'{"chat_template": ["x"]}', ENTRY),
        (b'{"chat_template": [{"name": "default"}]}', ENTRY),
        (b'{"chat_template": [{"name": "default", "template": 1}]}', ENTRY),
        (b'{"chat_template": [{"name": 1, "template": "x"}]}', ENTRY),
        (b'{"chat_template": [{"name": [], "template": "x"}]}', ENTRY),
        (b'{"chat_template": [{"name": "tool_use", "template": 1}]}', ENTRY),
        (b'{"chat_template": [["name", "template"]]}', ENTRY),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_a_damaged_configuration_is_refused(
    tmp_path: Path, content: bytes, got: str
) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=got):
        read_chat_templates(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(
        TokenizerError, match="expected UTF-8, got an invalid byte at offset 2"
    ):
        read_chat_templates(tmp_path)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, MAX_FILE_BYTES + 1)


@pytest.mark.parametrize(
    "name", ["chat_template.jinja", "tokenizer_config.json", "chat_template.json"]
)
@pytest.mark.parametrize(
    ("make", "expected"),
    [(os.mkfifo, "a regular file"), (sparse, "at most"), (Path.mkdir, "a regular file")],
)
def test_what_is_no_file_of_bounded_size_is_refused_unread(
    tmp_path: Path, name: str, make: Callable[[Path], None], expected: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(TokenizerError, match=f"expected {expected}"):
        read_chat_templates(tmp_path)
