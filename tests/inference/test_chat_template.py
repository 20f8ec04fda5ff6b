"""A chat template is recognised by its text and never run."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from src.inference.chat_encoding import format_of_template, format_of_tokens, read_template
from src.inference.chat_formats import CHAT_FORMATS
from src.tokenizer import TokenizerError
from src.tokenizer.bounded_files import MAX_FILE_BYTES
from tests.inference.published_templates import CHATML_BOS, LLAMA3_1, PUBLISHED, SMOLLM


def test_every_format_has_a_template_in_the_tests() -> None:
    assert list(PUBLISHED) == list(CHAT_FORMATS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_template_tells_its_format(name: str) -> None:
    assert format_of_template(PUBLISHED[name]) == name


def test_the_template_of_llama_3_1_tells_metas_own_format() -> None:
    assert format_of_template(LLAMA3_1) == "llama3"


@pytest.mark.parametrize("name", PUBLISHED)
def test_quotes_and_spaces_and_the_spelling_of_a_newline_do_not_matter(name: str) -> None:
    text = PUBLISHED[name]
    for changed in (
        text.replace("'", '"'),
        text.replace('"', "'"),
        text.replace(" + ", "+"),
        text.replace("|trim", " | trim").replace(" | trim", "|trim"),
        text.replace("message['content']", "message.content"),
        text.replace("\\n", "\n"),
    ):
        assert format_of_template(changed) == name


@pytest.mark.parametrize(
    "template",
    [
        "",
        "{{ messages }}",
        "[INST] <<SYS>>",
        SMOLLM.replace("<|im_end|>", "<|im_sep|>"),
        # Another system message of its own, and one in the way of SmolLM2.
        "{{ '<|im_start|>system\nYou are Qwen<|im_end|>\n' }}" + SMOLLM,
        "{{ '<|im_start|>system\nYou are Qwen<|im_end|>\n' }}" + CHATML_BOS,
        # Tulu: the names of Zephyr, but questions have no end of text.
        "{{ '<|user|>\n' + message['content'] + '\n' }}{{ '<|assistant|>\n' + x + eos_token }}",
        # Tekken: the control tokens of Mistral without spaces.
        PUBLISHED["mistral-v3"].replace('"[INST] "', '"[INST]"'),
        # The system message of Mistral in tokens of its own.
        "{{ '[SYSTEM_PROMPT]' + s + '[/SYSTEM_PROMPT]' }}{{ '[INST]' + message['content'] }}",
    ],
)
def test_a_template_that_is_not_in_the_table_is_unknown(template: str) -> None:
    assert format_of_template(template) is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "llama3"),
        (("<|im_start|>", "<|im_end|>"), "chatml"),
        (("<s>", "</s>", "[INST]", "[/INST]"), "mistral-v3"),
        (
            (
                *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
                *("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
            ),
            "deepseek-r1",
        ),
        (("<|im_start|>",), None),
        (("<unk>", "<s>", "</s>"), None),
        ((), None),
    ],
)
def test_special_tokens_tell_a_format(names: tuple[str, ...], expected: str | None) -> None:
    special: Any = SimpleNamespace(
        special_tokens=dict.fromkeys(names, 0), encode=lambda *_, **__: []
    )
    assert format_of_tokens(special) == expected


def write_config(directory: Path, template: object) -> None:
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


def test_a_template_is_read_from_each_place_and_its_own_file_goes_first(tmp_path: Path) -> None:
    assert read_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    assert read_template(tmp_path) is None
    write_config(tmp_path, "of the configuration")
    assert read_template(tmp_path) == "of the configuration"
    (tmp_path / "chat_template.jinja").write_text("of its own file, ｜", encoding="utf-8")
    assert read_template(tmp_path) == "of its own file, ｜"


def test_of_named_templates_the_default_one_counts(tmp_path: Path) -> None:
    tool_use = {"name": "tool_use", "template": "T"}
    write_config(tmp_path, [tool_use, {"name": "default", "template": "D"}])
    assert read_template(tmp_path) == "D"
    write_config(tmp_path, [tool_use])
    assert read_template(tmp_path) is None


@pytest.mark.parametrize(
    ("template", "got"),
    [
        (5, "got a number"),
        ({"default": "x"}, "got an object"),
        (["x"], "a name and a template in each entry"),
        ([{"name": "default"}], "a name and a template in each entry"),
        ([{"name": 1, "template": "x"}], "a name and a template in each entry"),
    ],
)
def test_a_template_of_another_kind_is_refused(tmp_path: Path, template: object, got: str) -> None:
    write_config(tmp_path, template)
    with pytest.raises(TokenizerError, match=got) as error:
        read_template(tmp_path)
    assert "chat_template: expected" in str(error.value)


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "expected"),
        (b"{", "expected JSON"),
        (b"[]", "expected an object, got a list"),
        (b"\xff{}", "expected UTF-8"),
        (b'{"a": 1, "a": 2}', "each key once"),
        (b'{"a": ' + b"[" * (1 << 20), "a few levels of nesting"),
        (b'{"chat_template": NaN}', "finite number"),
    ],
)
def test_a_damaged_configuration_is_refused(tmp_path: Path, content: bytes, got: str) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=got):
        read_template(tmp_path)


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json"])
def test_what_is_no_file_of_bounded_size_is_refused_without_reading_it(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    with pytest.raises(TokenizerError, match="expected a regular file"):
        read_template(tmp_path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(TokenizerError, match=f"at most {MAX_FILE_BYTES} bytes"):
        read_template(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(TokenizerError, match="expected a regular file"):
        read_template(tmp_path)


def test_a_template_file_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(TokenizerError, match="expected UTF-8, got other bytes at byte 2"):
        read_template(tmp_path)


@pytest.mark.parametrize("text", [" ", "\t", " +", "| ", "message", "\\n"])
def test_a_long_text_is_looked_through_in_linear_time(text: str) -> None:
    assert format_of_template(text * (1 << 19) + "x") is None  # in quadratic time: for hours
