"""Tokenizers from the keys of GGUF files: the ids of the files that the keys were made
of.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from src.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from src.tokenizer.gguf_keys import gguf_tokenizer, ignored_keys
from src.tokenizer.sentencepiece_model import read_sentencepiece_model
from src.tokenizer.tokenizer_json import read_tokenizer_json
from tests.support.gguf_writer import byte_level_keys, sentencepiece_keys
from tests.support.sentencepiece_writer import (
    BYTE,
    CONTROL,
    NORMAL,
    RESERVED,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    model_message,
    ranked,
)
from tests.support.shared_data import shared_data
from tests.tokenizer.conftest import encode, real_tokenizer
from tests.tokenizer.json_files import (
    BYTE_LEVEL,
    SPLIT,
    added,
    byte_level_file,
    changed,
    sequence,
    write_json,
)
from tests.tokenizer.strings import KINDS, strings
from tests.tokenizer.trained_files import QWEN

PATH = Path("a.gguf")
G = "tokenizer.ggml."
TEXTS = [
    "Hello  world 123456",
    "a\n\n b\t",
    "日本語 🦙 <|eot_id|><s>",
    " x",
    "",
    "don't I'LL",
    "\ud800",
]


def made(keys: Mapping[str, Any]) -> Tokenizer:
    tokenizer = gguf_tokenizer(PATH, keys)
    assert tokenizer is not None
    return tokenizer


def assert_same(ours: Tokenizer, theirs: Tokenizer, texts: Any) -> None:
    for text in texts:
        ids = encode(theirs, text)
        assert encode(ours, text) == ids, ascii(text)
        assert ours.decode(ids) == theirs.decode(ids)


def assert_same_roles(ours: Tokenizer, theirs: Tokenizer) -> None:
    assert ours.vocab_size == theirs.vocab_size
    assert ours.special_tokens == theirs.special_tokens
    assert (ours.bos_id, ours.adds_bos) == (theirs.bos_id, theirs.adds_bos)
    assert ours.stop_ids == theirs.stop_ids
    assert ours.decoding == theirs.decoding
    assert all(
        ours.token_bytes(n) == theirs.token_bytes(n) for n in range(ours.vocab_size)
    )


@pytest.mark.parametrize("name", ["llama2", "llama3"])
def test_the_ids_are_those_of_the_original_file(name):
    if name == "llama3":
        keys = byte_level_keys(
            json.loads(shared_data("llama3/tokenizer.json").read_bytes())
        )
        keys |= {G + "bos_token_id": 128000, G + "eos_token_id": 128009}
    else:
        keys = sentencepiece_keys(
            read_sentencepiece_model(shared_data("llama2/tokenizer.model"))
        )
    ours = made(keys)
    theirs = real_tokenizer(f"{name}/tokenizer.model")
    assert_same_roles(ours, theirs)
    assert_same(ours, theirs, TEXTS)
    for kind in KINDS:
        assert_same(ours, theirs, strings(kind, 5, 20))


# Byte-level BPE

_MERGES = (("t", "h"), ("th", "e"), ("\u0120", "the"), ("1", "2"))
FILE = byte_level_file(_MERGES, names=("<|im_end|>",))
FILE = changed(FILE, added_tokens=[*FILE["added_tokens"], added(261, "<think>")])


def file_keys(**changes: Any) -> dict[str, Any]:
    """Write the keys of the file; `changes` replaces some, or leaves them out if None."""
    keys = byte_level_keys(FILE) | {G + "eos_token_id": 260}
    keys |= {G + name: value for name, value in changes.items()}
    return {name: value for name, value in keys.items() if value is not None}


def test_added_tokens_are_found_in_text_and_special_ones_are_not():
    tokenizer = made(file_keys())
    ids = encode(tokenizer, "the<think> the<|im_end|>")
    assert ids[:3] == [257, 261, 258]
    assert 260 not in ids
    assert tokenizer.stop_ids == {260}
    assert tokenizer.decode([257, 261, 258, 260]) == "the<think> the<|im_end|>"


DIGITS = {"type": "Digits", "individual_digits": True}
PATTERN = SPLIT | {"pattern": {"Regex": QWEN}}
NAMED = {
    "gpt-2": {"pre_tokenizer": BYTE_LEVEL},
    "smollm": {"pre_tokenizer": sequence(DIGITS, BYTE_LEVEL)},
    "qwen2": {
        "pre_tokenizer": sequence(PATTERN, BYTE_LEVEL | {"use_regex": False}),
        "normalizer": {"type": "NFC"},
    },
}


@pytest.mark.parametrize("pre", NAMED)
def test_the_split_pattern_is_that_of_its_name(tmp_path, pre):
    """That of Qwen2 composes letters; it and that of SmolLM2 cut single digits."""
    file = write_json(tmp_path, changed(FILE, **NAMED[pre])) / "tokenizer.json"
    ours = made(file_keys(pre=pre))
    texts = [*TEXTS, "the 12 121212", "  the\n the", "e\u0301"]
    assert_same(ours, read_tokenizer_json(file), texts)
    assert len(encode(ours, "12")) == (1 if pre == "gpt-2" else 2)
    composed = encode(ours, "e\u0301") == [*"é".encode()]
    assert composed == (pre == "qwen2")


def test_whole_pieces_are_tokens_whatever_merges_say():
    keys = file_keys(merges=["t h"])
    assert encode(made(keys), "the") == [257]
    keys = file_keys(merges=["t h"], pre="gpt-2")
    assert encode(made(keys), "the") == [256, ord("e")]


@pytest.mark.parametrize(("pre", "adds"), [("llama-bpe", True), ("smollm", False)])
def test_the_begin_token_is_added_as_the_key_or_the_pattern_says(pre, adds):
    assert made(file_keys(pre=pre, bos_token_id=260)).adds_bos is adds
    for said in (True, False):
        keys = file_keys(pre=pre, bos_token_id=260, add_bos_token=said)
        assert made(keys).adds_bos is said


def test_tokens_with_a_role_are_special_and_end_answers():
    tokenizer = made(file_keys(eot_token_id=261, eom_token_id=259))
    assert {"<think>", "12"} <= tokenizer.special_tokens.keys()
    assert tokenizer.stop_ids == {259, 260, 261}
    assert 259 not in encode(tokenizer, "12")


def test_unused_tokens_are_no_text_and_decode_to_nothing():
    types = file_keys()[G + "token_type"]
    types[257] = UNUSED
    tokenizer = made(file_keys(token_type=types, merges=["t h"]))
    assert 257 not in encode(tokenizer, "the")
    assert tokenizer.decode([257]) == ""


def test_a_word_in_the_brackets_of_a_marker_is_special():
    keys = file_keys()
    keys[G + "tokens"].append("<|word|>")
    keys[G + "token_type"].append(USER_DEFINED)
    assert made(keys).special_tokens.keys() == {"<|im_end|>", "<|word|>"}


# SentencePiece


ROWS = [*RESERVED, *ranked("ab", "\u2581", "a", "b", "\u2581a")]


def columns(rows: list[tuple[str, float, int]]) -> dict[str, Any]:
    texts, scores, kinds = zip(*rows, strict=True)
    return {"tokens": [*texts], "scores": [*scores], "token_type": [*kinds]}


def pieces_keys(*more: tuple[str, float, int], **changes: Any) -> dict[str, Any]:
    keys: dict[str, Any] = {"model": "llama", "bos_token_id": 1, "eos_token_id": 2}
    keys |= columns([*ROWS, *more])
    return {
        G + name: value for name, value in (keys | changes).items() if value is not None
    }


@pytest.mark.parametrize(
    ("changes", "normalizer"),
    [({}, {}), ({"add_space_prefix": False}, {3: 0})],
)
def test_the_settings_of_the_keys_are_those_of_the_model(tmp_path, changes, normalizer):
    (tmp_path / "tokenizer.model").write_bytes(model_message(ROWS, normalizer=normalizer))
    ours = made(pieces_keys(**changes))
    theirs = load_tokenizer(tmp_path)
    assert_same_roles(ours, theirs)
    assert_same(ours, theirs, [*TEXTS, "ab  a b ", " abba "])


def test_pieces_may_be_added_as_words_or_as_padding():
    tokenizer = made(pieces_keys(("<think>", 0.0, USER_DEFINED), ("[PAD]", 0.0, UNUSED)))
    assert encode(tokenizer, "<think>")[-1] == 264
    assert 265 not in encode(tokenizer, "[PAD]")
    assert not tokenizer.is_special(264)


def test_spaces_in_an_added_piece_are_the_spaces_of_a_text():
    tokenizer = made(pieces_keys(("   ", 0.0, USER_DEFINED)))
    ids = tokenizer.encode("a   a", bos=False, eos=False)
    assert tokenizer.vocab_size - 1 in ids
    assert tokenizer.decode(ids) == "a   a"


def test_the_begin_token_is_the_piece_with_its_id():
    tokenizer = made(pieces_keys(("[BOS]", 0.0, CONTROL), bos_token_id=264))
    assert (tokenizer.bos_id, tokenizer.encode("a", bos=True, eos=False)[0]) == (264, 264)


def test_keys_that_llama_cpp_ignores_are_ignored_and_listed():
    more = {"precompiled_charsmap": [1], "normalizer.lowercase": True, "unheard_of": 1}
    keys = pieces_keys(**more, suppress_tokens=[], padding_token_id=0)
    assert_same_roles(made(keys), made(pieces_keys()))
    assert ignored_keys(keys) == tuple(G + key for key in more)
    assert ignored_keys(pieces_keys()) == ignored_keys(file_keys()) == ()


# What is refused


@pytest.mark.parametrize("model", [None, "no_vocab", "none"])
def test_a_file_without_a_vocabulary_has_no_tokenizer(model):
    assert gguf_tokenizer(PATH, {} if model is None else {G + "model": model}) is None


BYTES = [kind for _, _, kind in RESERVED]
BAD_PIECES: list[tuple[dict[str, Any], str]] = [
    (
        {"model": "bert"},
        "key 'tokenizer.ggml.model': expected 'llama' or 'gpt2', got 'bert'",
    ),
    ({"model": 3}, "key 'tokenizer.ggml.model': expected 'llama' or 'gpt2', got 3"),
    (
        {"suppress_tokens": [1, 2]},
        "key 'tokenizer.ggml.suppress_tokens': expected no tokens, b",
    ),
    ({"tokens": None}, "key 'tokenizer.ggml.tokens': expected a list of str, got null"),
    ({"tokens": "x"}, "key 'tokenizer.ggml.tokens': expected a list of str, got 'x'"),
    (
        {"tokens": [1]},
        "key 'tokenizer.ggml.tokens': expected a list of str, got a list of int",
    ),
    ({"tokens": []}, "key 'tokenizer.ggml.tokens': expected 1 to 524288 values, got 0"),
    (
        {"scores": [0.0]},
        "key 'tokenizer.ggml.scores': expected 264 values, one per token, g",
    ),
    ({"scores": None}, "key 'tokenizer.ggml.scores': expected a list of float, got null"),
    (
        {"scores": [float("nan")] * 264},
        "piece 0: score: expected a finite number, got nan",
    ),
    (
        {"token_type": [1]},
        "key 'tokenizer.ggml.token_type': expected 264 values, one per token",
    ),
    (
        {"token_type": [1.0] * 264},
        "key 'tokenizer.ggml.token_type': expected a list of int, got a",
    ),
    ({"token_type": [0] * 264}, "token 0: type: expected a value from 1 to 6, got 0"),
    (
        {"token_type": [UNKNOWN, *BYTES[:-1], *[NORMAL] * 5]},
        "pieces: expected one unknown piece",
    ),
    (
        {"token_type": [*BYTES[:-1], *[NORMAL] * 6]},
        "pieces: '<0xFF>': expected a byte piece, got ",
    ),
    ({"tokens": ["a"] * 264}, "token 1: expected a new text, got 'a' of token 0 again"),
    (
        {"tokens": ["", *map(str, range(263))]},
        "vocab: expected 1 to 4096 characters in each tok",
    ),
    (
        {"bos_token_id": 264},
        "key 'tokenizer.ggml.bos_token_id': expected 0 <= id < 264, got 264",
    ),
    (
        {"eos_token_id": -1},
        "key 'tokenizer.ggml.eos_token_id': expected 0 <= id < 264, got -1",
    ),
    (
        {"eot_token_id": 2**32 - 1},
        "key 'tokenizer.ggml.eot_token_id': expected 0 <= id < 264, got",
    ),
    (
        {"eom_token_id": "x"},
        "key 'tokenizer.ggml.eom_token_id': expected 0 <= id < 264, got 'x'",
    ),
    (
        {"add_bos_token": 1},
        "key 'tokenizer.ggml.add_bos_token': expected true or false, got 1",
    ),
    (
        {"add_space_prefix": "x"},
        "key 'tokenizer.ggml.add_space_prefix': expected true or false",
    ),
    (
        {"remove_extra_whitespaces": True},
        "key 'tokenizer.ggml.remove_extra_whitespaces': expected",
    ),
]


def test_a_byte_that_is_none_is_refused():
    words = r"pieces: '<0x-1>': expected no byte piece, got one"
    with pytest.raises(TokenizerError, match=words):
        gguf_tokenizer(PATH, pieces_keys(("<0x-1>", 0.0, BYTE)))


BAD_TOKENS: list[tuple[dict[str, Any], str]] = [
    (
        {"pre": "\x1b[m"},
        r"key 'tokenizer.ggml.pre': expected one of llama-bpe, dbrx, ",
    ),
    (
        {"pre": 1},
        "key 'tokenizer.ggml.pre': expected one of llama-bpe, dbrx, ",
    ),
    (
        {"token_type": [NORMAL, BYTE, *[7] * 260]},
        "token 2: type: expected a value from 1 to 6, g",
    ),
    (
        {"merges": ["t h", "x y"]},
        "merges[1]: expected tokens of the vocabulary, got 'xy'",
    ),
    (
        {"token_type": [CONTROL] * 262, "merges": []},
        "vocab: expected tokens in GPT-2's letters for bytes,",
    ),
]


BAD = [(pieces_keys, *bad) for bad in BAD_PIECES] + [
    (file_keys, *bad) for bad in BAD_TOKENS
]


@pytest.mark.parametrize(("make", "changes", "reason"), BAD)
def test_bad_keys_of_pieces_and_of_byte_level_tokens_are_refused(make, changes, reason):
    with pytest.raises(TokenizerError) as caught:
        gguf_tokenizer(PATH, make(**changes))
    assert str(caught.value).startswith(f"a.gguf: {reason}")
    assert str(caught.value).isprintable()
    made(make())
