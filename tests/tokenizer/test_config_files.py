import json
import os
import random
import shutil
import tracemalloc
from pathlib import Path
from typing import Any, ClassVar

import pytest

from src.tokenizer import Tokenizer, TokenizerError, config_files, load_tokenizer
from src.tokenizer.config_files import MAX_TOKENS
from src.tokenizer.sentencepiece_model import read_sentencepiece_model
from tests.support.sentencepiece_writer import (
    RESERVED,
    bytes_field,
    model_message,
    ranked,
)
from tests.support.shared_data import shared_data
from tests.tokenizer.conftest import encode
from tests.tokenizer.json_files import (
    added,
    byte_level_file,
    changed,
    metaspace_file,
    write_json,
)
from tests.tokenizer.strings import KINDS, strings

END_OF_TEXT = 258
IM_START = 259
IM_END = 260
GENERATION = "generation_config"


def load(directory: Path, file: Any = None, **beside: Any) -> Tokenizer:
    return load_tokenizer(write_json(directory, file or byte_level_file(), **beside))


def test_without_files_beside_it_the_known_names_decide(tmp_path):
    tokenizer = load(tmp_path)
    assert tokenizer.eos_id == END_OF_TEXT
    assert tokenizer.stop_ids == {END_OF_TEXT, IM_END}
    assert not tokenizer.adds_bos
    with pytest.raises(TokenizerError, match="must have a token that begins a text"):
        tokenizer.encode("the", bos=True, eos=False)


@pytest.mark.parametrize(
    "form", [str, lambda name: added(0, name)], ids=["text", "object"]
)
def test_tokenizer_config_names_begin_and_end(tmp_path, form):
    config = {"bos_token": form("<|im_start|>"), "eos_token": form("<|im_end|>")}
    tokenizer = load(tmp_path, tokenizer_config=config)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (IM_START, IM_END)
    assert not tokenizer.adds_bos  # the model's texts do not begin with it


def test_special_tokens_map_names_what_tokenizer_config_does_not(tmp_path):
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_start|>"}
    config = {"eos_token": "<|im_end|>", "bos_token": None}
    tokenizer = load(tmp_path, tokenizer_config=config, special_tokens_map=names)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (IM_START, IM_END)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize(
    "file", [byte_level_file(), metaspace_file()], ids=["bytes", "marked"]
)
def test_tokenizer_config_says_what_begins_texts(tmp_path, file, flag):
    named = {} if "<s>" in file["model"]["vocab"] else {"bos_token": "<|im_start|>"}
    assert (
        load(tmp_path, file, tokenizer_config={"add_bos_token": flag} | named).adds_bos
        == flag
    )


def test_a_named_token_is_special_even_if_its_flag_does_not_say_so(tmp_path):
    file = changed(byte_level_file(names=()), added_tokens=[added(258, "END")])
    assert encode(load(tmp_path, file), "END") == [258]
    tokenizer = load(tmp_path, file, tokenizer_config={"eos_token": "END"})
    assert encode(tokenizer, "END") == [*b"END"]
    assert tokenizer.encode("", bos=False, eos=True) == [258]
    assert tokenizer.is_special(258)


@pytest.mark.parametrize(
    ("value", "ids"),
    [(5, {5}), ([0, 260], {0, 260}), ([5, 261], {5}), ([], set()), (None, set())],
)
def test_generation_config_adds_ids_that_end(tmp_path, value, ids):
    tokenizer = load(tmp_path, generation_config={"eos_token_id": value})
    assert tokenizer.stop_ids == {END_OF_TEXT, IM_END} | ids


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        (
            {"tokenizer_config": {"eos_token": "<x>"}},
            "eos_token: expected a special token",
        ),
        (
            {"special_tokens_map": {"bos_token": "<x>"}},
            r"special_tokens_map\.json: bos_token: ",
        ),
        (
            {"tokenizer_config": {"eos_token": 5}},
            "a text or an object with content, got [0-9]",
        ),
        (
            {"tokenizer_config": {"eos_token": {"content": []}}},
            "with content, got a list",
        ),
        ({"tokenizer_config": {"add_bos_token": "yes"}}, "expected true or false, got '"),
        ({"tokenizer_config": b"{"}, r"tokenizer_config\.json: content: expected JSON"),
        (
            {GENERATION: {"eos_token_id": "5"}},
            "eos_token_id: expected a whole number, got '",
        ),
        ({GENERATION: {"eos_token_id": [True]}}, "a whole number, got (true|false)"),
        ({GENERATION: {"eos_token_id": [5.0]}}, "a whole number, got [0-9]"),
        ({GENERATION: {"eos_token_id": -1}}, "eos_token_id: expected id >= 0, got -1"),
        ({GENERATION: b'{"a": 1, "a": 1}'}, "expected each key once, got 'a' twice"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:30],
)
def test_what_is_wrong_beside_the_tokenizer_is_refused(tmp_path, beside, message):
    with pytest.raises(TokenizerError, match=message):
        load(tmp_path, **beside)


# Tokens that the files add to a SentencePiece model

PIECES = [*RESERVED, *ranked("th", "▁th", "▁the", "▁", "t", "h", "e")]
V = len(PIECES)
THE = 261
MARK = 262
H = 264
E = 265

ADDED = {"</s>": 2, "[PAD]": V, "<think>": V + 1, "the": V + 2, "<|turn|>": V + 3}
MAP = {"pad_token": {"content": "[PAD]"}, "additional_special_tokens": ["<x>"]}


def with_model(directory: Path, **beside: Any) -> Tokenizer:
    """Load a SentencePiece model with files beside it, by their names without `.json`."""
    (directory / "tokenizer.model").write_bytes(model_message(PIECES))
    for name, content in beside.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (directory / f"{name}.json").write_bytes(data)
    return load_tokenizer(directory)


def test_words_are_found_in_text_and_special_ones_stay_text(tmp_path):
    tokenizer = with_model(tmp_path, added_tokens=ADDED, special_tokens_map=MAP)
    assert tokenizer.vocab_size == V + 4
    assert encode(tokenizer, "h<think>h the") == [MARK, H, V + 1, MARK, H, MARK, V + 2]
    for text, number in (("[PAD]", V), ("<|turn|>", V + 3), ("</s>", 2)):
        assert number not in encode(tokenizer, text)
        assert tokenizer.special_tokens[text] == number
        assert tokenizer.decode([number]) == text
    assert tokenizer.decode(encode(tokenizer, "<think>[PAD]")) == "<think> [PAD]"
    assert not tokenizer.is_special(V + 1)


def test_a_role_may_be_that_of_an_added_token(tmp_path):
    names = {"eos_token": "<end>", "bos_token": "<s>"}
    tokenizer = with_model(tmp_path, added_tokens={"<end>": V}, special_tokens_map=names)
    assert tokenizer.eos_id == V
    assert V in tokenizer.stop_ids


def test_a_piece_that_is_called_special_comes_from_no_text(tmp_path):
    names = {"pad_token": "▁the"}
    tokenizer = with_model(tmp_path, added_tokens={"▁the": THE}, special_tokens_map=names)
    assert encode(tokenizer, "the") == [260, E]
    assert tokenizer.is_special(THE)


def test_extra_special_tokens_may_have_names(tmp_path):
    config = {"extra_special_tokens": {"x": "<x>"}}
    assert with_model(
        tmp_path, added_tokens={"<x>": V}, tokenizer_config=config
    ).is_special(V)


def test_the_newer_list_in_tokenizer_config_goes_first(tmp_path):
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    decoder = {
        str(V): ONE | flags,
        str(V + 1): flags | {"content": "<b>", "special": True},
    }
    config = {"added_tokens_decoder": decoder}
    tokenizer = with_model(tmp_path, tokenizer_config=config, added_tokens={"<c>": V})
    assert tokenizer.vocab_size == V + 2
    assert encode(tokenizer, "<a>") == [V]
    assert tokenizer.is_special(V + 1)
    assert not tokenizer.is_special(V)


ONE = {"content": "<a>", "special": False}


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        (
            {"added_tokens": {"<a>": V + 1}},
            f"'<a>': expected {V}, the next after the pieces, got",
        ),
        ({"added_tokens": {"<a>": V, "<b>": V}}, f"'<b>': expected {V + 1}, the next"),
        ({"added_tokens": {"<a>": V, "<b>": V + 2}}, "'<b>': expected"),
        (
            {"added_tokens": {"<a>": 5}},
            f"'<a>': expected {V}, the next after the pieces, got 5",
        ),
        ({"added_tokens": {"<a>": -1}}, "got -1"),
        ({"added_tokens": {"<a>": 10**30}}, "expected"),
        ({"added_tokens": {"</s>": V}}, "'</s>': expected 2, the id of the piece, got"),
        ({"added_tokens": {"<a>": str(V)}}, "id: expected a whole number, got '"),
        (
            {"added_tokens": {"<a>": True}},
            "id: expected a whole number, got (true|false)",
        ),
        ({"added_tokens": {"<a>": float(V)}}, "id: expected a whole number, got [0-9]"),
        ({"added_tokens": {"": V}}, "1 to 4096 characters in each token, got 0"),
        (
            {"added_tokens": {"x" * 5000: V}},
            "1 to 4096 characters in each token, got 5000",
        ),
        ({"added_tokens": b'{"\\ud800": %d}' % V}, "text without surrogates"),
        ({"added_tokens": ["<a>"]}, "expected a JSON object, got a list"),
        (
            {"added_tokens": b'{"<a>": %d, "<a>": %d}' % (V, V)},
            "each key once, got '<a>' twice",
        ),
        ({"added_tokens": b"{"}, r"added_tokens\.json: content: expected JSON"),
        (
            {"special_tokens_map": {"pad_token": 5}},
            "pad_token: expected a text or an object",
        ),
        (
            {"special_tokens_map": {"extra_special_tokens": "<a>"}},
            "tokens: expected a list, got",
        ),
        (
            {"special_tokens_map": {"additional_special_tokens": [5]}},
            "a text or an object",
        ),
        ({"tokenizer_config": {"added_tokens_decoder": [ONE]}}, "an object, got a list"),
        (
            {"tokenizer_config": {"added_tokens_decoder": {"x": ONE}}},
            "expected ids, got 'x'",
        ),
        (
            {"tokenizer_config": {"added_tokens_decoder": {"9" * 19: ONE}}},
            "expected ids, got",
        ),
        (
            {"tokenizer_config": {"added_tokens_decoder": {"9" * 18: ONE}}},
            "the next after",
        ),
        (
            {"tokenizer_config": {"added_tokens_decoder": {str(V): "<a>"}}},
            "an object, got '",
        ),
        (
            {"tokenizer_config": {"legacy": False}, "added_tokens": {"<a>": V}},
            "true, got false",
        ),
        (
            {"tokenizer_config": {"legacy": "no"}, "added_tokens": {"<a>": V}},
            "true, got '",
        ),
    ],
)
def test_what_is_wrong_is_refused_and_its_twin_loads(tmp_path, beside, message):
    with pytest.raises(TokenizerError, match=message) as caught:
        with_model(tmp_path, **beside)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))
    twin = {"added_tokens": {"<a>": V}, "tokenizer_config": {}, "special_tokens_map": {}}
    assert encode(with_model(tmp_path, **twin), "<a>") == [V]


@pytest.mark.oracle
def test_ids_are_those_of_the_slow_tokenizer_of_transformers(tmp_path):
    name = "transformers.tokenization_utils_sentencepiece"
    oracle = pytest.importorskip(name, reason="needs the oracle extra")

    class Slow(oracle.SentencePieceBackend):  # type: ignore[name-defined]
        vocab_files_names: ClassVar[dict[str, str]] = {"vocab_file": "tokenizer.model"}

    shutil.copy(shared_data("llama2/tokenizer.model"), tmp_path)
    words = ["<think>", "two words", "klass", "klas", "▁deff", "  ", "e\n"]
    added = {word: 32000 + number for number, word in enumerate(words)}
    (tmp_path / "added_tokens.json").write_text(
        json.dumps(added | {"</s>": 2, "[PAD]": 32007})
    )
    names = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "[PAD]",
    }
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    ours = load_tokenizer(tmp_path)
    theirs = Slow.from_pretrained(tmp_path)
    assert ours.vocab_size == len(theirs)
    source = random.Random(9)
    lively = [*words, " ", "x", "é", "\n", "klasse", "two", "😀", "<th", "12", "▁"]
    texts = ["".join(source.choices(lively, k=source.randint(0, 8))) for _ in range(400)]
    for kind in KINDS:
        texts += strings(kind, 6, 20 if kind != "long" else 2, surrogates=False)
    for text in texts:
        assert encode(ours, text) == theirs.encode(text, add_special_tokens=False), ascii(
            text
        )


# Limits

SIZE = 2 << 20
GREEDY = {
    "empty lines": ("tokenizer.model", b"AA== 0\n", b"\n", b""),
    "short lines": ("tokenizer.model", b"AA== 0\n", b"ab\n", b""),
    "short pieces": ("tokenizer.model", b"", bytes_field(1, bytes_field(1, "a")), b""),
    "pieces without text": (
        "tokenizer.model",
        b"",
        bytes_field(1, bytes_field(1, "")),
        b"",
    ),
    "lists": ("tokenizer.json", b"[", b"[],", b"0]"),
    "objects": ("tokenizer.json", b'{"added_tokens":[', b'{"a":1},', b"0]}"),
    "texts": ("tokenizer.json", b'{"added_tokens":[', b'"",', b'""]}'),
}


@pytest.mark.parametrize("kind", GREEDY)
def test_a_file_of_many_small_things_takes_a_few_times_its_size(
    tmp_path, monkeypatch, kind
):
    """Before, up to 45 times its size; here a file of 8 MiB and the limits, all by a
    quarter.
    """
    monkeypatch.setattr("src.tokenizer.sentencepiece_model.MAX_TOKENS", MAX_TOKENS // 4)
    monkeypatch.setattr(
        config_files, "_MAX_JSON_VALUES", config_files._MAX_JSON_VALUES // 4
    )
    name, begin, part, end = GREEDY[kind]
    (tmp_path / name).write_bytes(begin + part * (SIZE // len(part)) + end)
    tracemalloc.start()
    try:
        with pytest.raises(TokenizerError, match="expected"):
            load_tokenizer(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * SIZE


def test_as_many_tokens_as_the_limit_are_read_and_one_more_is_refused(
    tmp_path, monkeypatch
):
    for module in ("tokenizer_json", "sentencepiece_model"):
        monkeypatch.setattr(f"src.tokenizer.{module}.MAX_TOKENS", 260)
    path = tmp_path / "tokenizer.model"
    rows = [*RESERVED, ("a", -1.0, 1), ("b", -2.0, 1)]
    path.write_bytes(model_message(rows[:260]))
    assert len(read_sentencepiece_model(path).pieces) == 260
    path.write_bytes(model_message(rows))
    with pytest.raises(
        TokenizerError, match=r"pieces: expected at most 260 .*, got more"
    ):
        read_sentencepiece_model(path)
    file = byte_level_file((("t", "h"), ("t", "e"), ("h", "e"), ("e", "e")), names=())
    assert load(tmp_path / "json", file).vocab_size == 260
    file["model"]["vocab"]["ht"] = 260
    with pytest.raises(TokenizerError, match="vocab: expected 1 to 260 tokens, got 261"):
        load(tmp_path / "json", file)


def test_a_file_may_have_64_mib_and_no_more(tmp_path):
    path = tmp_path / "tokenizer.model"
    path.touch()
    limit = 64 << 20
    for size, words in (
        (limit, "line 1"),
        (limit + 1, f"at most {limit} bytes, got {limit + 1}"),
    ):
        os.truncate(path, size)
        with pytest.raises(TokenizerError, match=words):
            load_tokenizer(tmp_path)
