from pathlib import Path
from typing import Any

import pytest

from src.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from tests.tokenizer.json_files import added, byte_level_file, changed, marked_file, write_json

END_OF_TEXT, IM_START, IM_END = 258, 259, 260
GENERATION = "generation_config"


def load(directory: Path, file: Any = None, **beside: Any) -> Tokenizer:
    return load_tokenizer(write_json(directory, file or byte_level_file(), **beside))


def test_without_files_beside_it_the_known_names_decide(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert tokenizer.eos_id == END_OF_TEXT
    assert tokenizer.stop_ids == {END_OF_TEXT, IM_END}
    assert not tokenizer.adds_bos
    with pytest.raises(TokenizerError, match="no token of the vocabulary begins a text"):
        tokenizer.encode("the", bos=True, eos=False)


@pytest.mark.parametrize("form", [str, lambda name: added(0, name)], ids=["text", "object"])
def test_tokenizer_config_names_begin_and_end(tmp_path: Path, form: Any) -> None:
    config = {"bos_token": form("<|im_start|>"), "eos_token": form("<|im_end|>")}
    tokenizer = load(tmp_path, tokenizer_config=config)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (IM_START, IM_END)
    assert not tokenizer.adds_bos  # the model's texts do not begin with it


def test_special_tokens_map_names_what_tokenizer_config_does_not(tmp_path: Path) -> None:
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_start|>"}
    config = {"eos_token": "<|im_end|>", "bos_token": None}
    tokenizer = load(tmp_path, tokenizer_config=config, special_tokens_map=names)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (IM_START, IM_END)


@pytest.mark.parametrize("flag", [True, False])
def test_tokenizer_config_says_whether_texts_begin_with_it(tmp_path: Path, flag: bool) -> None:
    config = {"bos_token": "<|im_start|>", "add_bos_token": flag}
    assert load(tmp_path, tokenizer_config=config).adds_bos == flag
    directory = tmp_path / "marked"
    assert load(directory, marked_file(), tokenizer_config={"add_bos_token": flag}).adds_bos == flag


def test_a_named_token_is_special_even_if_its_flag_does_not_say_so(tmp_path: Path) -> None:
    file = changed(byte_level_file(names=()), added_tokens=[added(258, "END")])
    assert load(tmp_path, file).encode("END", bos=False, eos=False) == [258]
    tokenizer = load(tmp_path, file, tokenizer_config={"eos_token": "END"})
    assert tokenizer.encode("END", bos=False, eos=False) == [*b"END"]
    assert tokenizer.encode("", bos=False, eos=True) == [258]
    assert tokenizer.is_special(258)


@pytest.mark.parametrize(
    ("value", "ids"), [(5, {5}), ([0, 260], {0, 260}), ([], set()), (None, set())]
)
def test_generation_config_adds_ids_that_end_an_answer(
    tmp_path: Path, value: Any, ids: set[int]
) -> None:
    tokenizer = load(tmp_path, generation_config={"eos_token_id": value})
    assert tokenizer.stop_ids == {END_OF_TEXT, IM_END} | ids


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        (
            {"tokenizer_config": {"eos_token": "<x>"}},
            "eos_token: expected a special token",
        ),
        ({"special_tokens_map": {"bos_token": "<x>"}}, r"special_tokens_map\.json: bos_token: "),
        ({"tokenizer_config": {"eos_token": 5}}, "a text or an object with content, got a number"),
        ({"tokenizer_config": {"eos_token": {"content": []}}}, "with content, got a list"),
        ({"tokenizer_config": {"add_bos_token": "yes"}}, "expected true or false, got a text"),
        ({"tokenizer_config": b"{"}, r"tokenizer_config\.json: text: expected JSON"),
        ({GENERATION: {"eos_token_id": "5"}}, "a number or a list of numbers, got a text"),
        ({GENERATION: {"eos_token_id": [True]}}, "list of numbers, got a truth value"),
        ({GENERATION: {"eos_token_id": [5.0]}}, "list of numbers, got a number"),
        ({GENERATION: {"eos_token_id": -1}}, "eos_token_id: expected 0 <= id < 261, got -1"),
        ({GENERATION: {"eos_token_id": [5, 261]}}, "0 <= id < 261, got 261"),
        ({GENERATION: b'{"a": 1, "a": 1}'}, "expected each key once, got 'a' twice"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:30],
)
def test_what_is_wrong_beside_the_tokenizer_is_refused(
    tmp_path: Path, beside: dict[str, Any], message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        load(tmp_path, **beside)
