"""Tokenizers from the keys of GGUF files: the ids of the files that the keys were made of."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from src.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from src.tokenizer.gguf_keys import PRE_TOKENIZERS, gguf_tokenizer
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
from tests.tokenizer.json_files import added, byte_level_file, changed, write_json
from tests.tokenizer.strings import KINDS, strings
from tests.tokenizer.trained_files import QWEN

PATH = Path("a.gguf")
G = "tokenizer.ggml."
TEXTS = [
    "Hello  world 123456", "a\n\n b\t", "日本語 🦙 <|eot_id|><s>", " x", "", "don't I'LL", "\ud800",
]  # fmt: skip


def made(keys: Mapping[str, Any]) -> Tokenizer:
    tokenizer = gguf_tokenizer(PATH, keys)
    assert tokenizer is not None
    return tokenizer


def assert_same(ours: Tokenizer, theirs: Tokenizer, texts: Any) -> None:
    for text in texts:
        ids = theirs.encode(text, bos=False, eos=False)
        assert ours.encode(text, bos=False, eos=False) == ids, ascii(text)
        assert ours.decode(ids) == theirs.decode(ids)


def assert_same_roles(ours: Tokenizer, theirs: Tokenizer) -> None:
    assert ours.vocab_size == theirs.vocab_size
    assert ours.special_tokens == theirs.special_tokens
    assert (ours.bos_id, ours.adds_bos) == (theirs.bos_id, theirs.adds_bos)
    assert ours.stop_ids == theirs.stop_ids
    assert ours.decoding == theirs.decoding
    assert all(ours.token_bytes(n) == theirs.token_bytes(n) for n in range(ours.vocab_size))


def real_pair(name: str) -> tuple[Tokenizer, Tokenizer]:
    """Give the tokenizer by the keys, and by the original file."""
    if name == "llama3":
        keys = byte_level_keys(shared_data("llama3/tokenizer.json"))
    else:
        keys = sentencepiece_keys(read_sentencepiece_model(shared_data("llama2/tokenizer.model")))
    return made(keys), load_tokenizer(shared_data(f"{name}/tokenizer.model").parent)


@pytest.mark.parametrize("name", ["llama2", "llama3"])
def test_the_ids_are_those_of_the_original_file(name: str) -> None:
    ours, theirs = real_pair(name)
    assert_same_roles(ours, theirs)
    assert_same(ours, theirs, TEXTS)
    for kind in KINDS:
        assert_same(ours, theirs, islice(strings(kind, 5, 20), 20))


# Byte-level BPE

_MERGES = (("t", "h"), ("th", "e"), ("\u0120", "the"), ("1", "2"))
FILE = byte_level_file(_MERGES, names=("<|im_end|>",))
FILE = changed(FILE, added_tokens=[*FILE["added_tokens"], added(261, "<think>")])


def keys_of(file: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Write the keys of a `tokenizer.json`; `changes` replaces some, or leaves them out if None."""
    extra = {token["content"]: token for token in file["added_tokens"]}
    ids = file["model"]["vocab"] | {text: token["id"] for text, token in extra.items()}
    names = sorted(ids, key=ids.__getitem__)
    types = [
        NORMAL if n not in extra else CONTROL if extra[n]["special"] else USER_DEFINED
        for n in names
    ]
    keys = {"model": "gpt2", "pre": "llama-bpe", "tokens": names, "token_type": types}
    keys |= {"merges": [*map(" ".join, file["model"]["merges"])], "eos_token_id": 260} | changes
    return {G + name: value for name, value in keys.items() if value is not None}


def test_added_tokens_are_found_in_text_and_special_ones_are_not() -> None:
    tokenizer = made(keys_of(FILE))
    ids = tokenizer.encode("the<think> the<|im_end|>", bos=False, eos=False)
    assert ids[:3] == [257, 261, 258]
    assert 260 not in ids
    assert tokenizer.stop_ids == {260}
    assert tokenizer.decode([257, 261, 258, 260]) == "the<think> the<|im_end|>"


@pytest.mark.parametrize(
    ("pre", "changes"),
    [
        ("gpt-2", {}),
        ("smollm", {"digits": True}),
    ],
)
def test_the_split_pattern_is_that_of_its_name(
    tmp_path: Path, pre: str, changes: dict[str, bool]
) -> None:
    byte_level: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    before: dict[str, Any] = byte_level
    if changes:
        digits = {"type": "Digits", "individual_digits": True}
        before = {"type": "Sequence", "pretokenizers": [digits, byte_level]}
    file = write_json(tmp_path, changed(FILE, pre_tokenizer=before)) / "tokenizer.json"
    theirs = read_tokenizer_json(file)
    ours = made(keys_of(FILE, pre=pre))
    assert_same(ours, theirs, [*TEXTS, "the 12 121212", "  the\n the"])
    twelve = ours.encode("12", bos=False, eos=False)
    assert len(twelve) == (2 if changes else 1)


def test_the_pattern_of_qwen2_cuts_single_digits_and_composes_letters(tmp_path: Path) -> None:
    pattern = {"type": "Split", "pattern": {"Regex": QWEN}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    before = {"type": "Sequence", "pretokenizers": [pattern, level]}
    changes = changed(FILE, normalizer={"type": "NFC"}, pre_tokenizer=before)
    theirs = read_tokenizer_json(write_json(tmp_path, changes) / "tokenizer.json")
    ours = made(keys_of(FILE, pre="qwen2"))
    assert_same(ours, theirs, [*TEXTS, "the 12 121212", "  the\n the", "e\u0301"])
    assert ours.encode("e\u0301", bos=False, eos=False) == list("é".encode())
    assert len(ours.encode("12", bos=False, eos=False)) == 2


def test_whole_pieces_are_tokens_whatever_merges_say() -> None:
    keys = keys_of(FILE, merges=["t h"])
    assert made(keys).encode("the", bos=False, eos=False) == [257]
    keys = keys_of(FILE, merges=["t h"], pre="gpt-2")
    assert made(keys).encode("the", bos=False, eos=False) == [256, ord("e")]


@pytest.mark.parametrize(("pre", "adds"), [("llama-bpe", True), ("smollm", False)])
def test_the_begin_token_is_added_as_the_key_says_or_the_pattern_implies(
    pre: str, adds: bool
) -> None:
    assert made(keys_of(FILE, pre=pre, bos_token_id=260)).adds_bos is adds
    for said in (True, False):
        keys = keys_of(FILE, pre=pre, bos_token_id=260, add_bos_token=said)
        assert made(keys).adds_bos is said


def test_tokens_with_a_role_are_special_and_end_answers() -> None:
    tokenizer = made(keys_of(FILE, eot_token_id=261, eom_token_id=259))
    assert {"<think>", "12"} <= tokenizer.special_tokens.keys()
    assert tokenizer.stop_ids == {259, 260, 261}
    assert 259 not in tokenizer.encode("12", bos=False, eos=False)


def test_unused_tokens_are_no_text_and_decode_to_nothing() -> None:
    types = keys_of(FILE)[G + "token_type"]
    types[257] = UNUSED
    tokenizer = made(keys_of(FILE, token_type=types, merges=["t h"]))
    assert 257 not in tokenizer.encode("the", bos=False, eos=False)
    assert tokenizer.decode([257]) == ""


# SentencePiece


def pieces_keys(*more: tuple[str, float, int], **changes: Any) -> dict[str, Any]:
    rows = [*RESERVED, *ranked("ab", "\u2581", "a", "b", "\u2581a"), *more]
    keys: dict[str, Any] = {
        "model": "llama", "tokens": [text for text, _, _ in rows],
        "scores": [float(score) for _, score, _ in rows],
        "token_type": [kind for _, _, kind in rows], "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return {G + name: value for name, value in (keys | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "normalizer"),
    [
        ({}, {}),
        ({"add_space_prefix": False}, {3: 0}),
        ({"remove_extra_whitespaces": True}, {4: 1}),
    ],
)
def test_the_settings_of_the_keys_are_those_of_the_model(
    tmp_path: Path, changes: dict[str, Any], normalizer: dict[int, int]
) -> None:
    rows = [*RESERVED, *ranked("ab", "\u2581", "a", "b", "\u2581a")]
    (tmp_path / "tokenizer.model").write_bytes(model_message(rows, normalizer=normalizer))
    ours, theirs = made(pieces_keys(**changes)), load_tokenizer(tmp_path)
    assert_same_roles(ours, theirs)
    assert_same(ours, theirs, [*TEXTS, "ab  a b ", " abba "])


def test_pieces_may_be_added_as_words_or_as_padding() -> None:
    tokenizer = made(pieces_keys(("<think>", 0.0, USER_DEFINED), ("[PAD]", 0.0, UNUSED)))
    assert tokenizer.encode("<think>", bos=False, eos=False)[-1] == 264
    assert 265 not in tokenizer.encode("[PAD]", bos=False, eos=False)
    assert not tokenizer.is_special(264)


def test_a_vocabulary_without_bytes_has_an_unknown_token() -> None:
    rows = [("<unk>", 0.0, UNKNOWN), *ranked("a", "\u2581")]
    keys = pieces_keys(
        tokens=[text for text, _, _ in rows],
        scores=[score for _, score, _ in rows],
        token_type=[kind for _, _, kind in rows],
        bos_token_id=None,
        eos_token_id=None,
    )
    tokenizer = made(keys)
    assert tokenizer.encode("a?", bos=False, eos=False) == [2, 1, 0]
    assert not tokenizer.adds_bos


# What is refused


@pytest.mark.parametrize("model", [None, "no_vocab", "none"])
def test_a_file_without_a_vocabulary_has_no_tokenizer(model: str | None) -> None:
    assert gguf_tokenizer(PATH, {} if model is None else {G + "model": model}) is None


BYTES = [kind for _, _, kind in RESERVED]
BAD_PIECES: list[tuple[dict[str, Any], str]] = [
    ({"model": "bert"}, "key 'tokenizer.ggml.model': expected 'llama' or 'gpt2', got 'bert'"),
    ({"model": 3}, "key 'tokenizer.ggml.model': expected 'llama' or 'gpt2', got 3"),
    ({"unheard_of": 1}, "keys: expected only known ones, got 'tokenizer.ggml.unheard_of'"),
    ({"precompiled_charsmap": [1]}, "keys: expected only known ones, got 'tokenizer.ggml.precomp"),
    ({"tokens": None}, "key 'tokenizer.ggml.tokens': expected a list of str, got null"),
    ({"tokens": "x"}, "key 'tokenizer.ggml.tokens': expected a list of str, got 'x'"),
    ({"tokens": [1]}, "key 'tokenizer.ggml.tokens': expected a list of str, got a list of int"),
    ({"tokens": []}, "key 'tokenizer.ggml.tokens': expected 1 to 524288 values, got 0"),
    ({"scores": [0.0]}, "key 'tokenizer.ggml.scores': expected 264 values, as there are tokens, g"),
    ({"scores": None}, "key 'tokenizer.ggml.scores': expected a list of float, got null"),
    ({"scores": [float("nan")] * 264}, "token 0: score: expected a finite number, got nan"),
    ({"token_type": [1]}, "key 'tokenizer.ggml.token_type': expected 264 values, as there are to"),
    ({"token_type": [1.0] * 264}, "key 'tokenizer.ggml.token_type': expected a list of int, got a"),
    ({"token_type": [0] * 264}, "token 0: type: expected a number from 1 to 6, got 0"),
    ({"token_type": [NORMAL] * 264}, "pieces: expected one of the type unknown, got 0"),
    ({"token_type": [*BYTES[:-1], *[NORMAL] * 6]}, "pieces: '<0xFF>': expected a byte piece, got "),
    ({"tokens": ["a"] * 264}, "token 1: expected a new text, got 'a' of token 0 again"),
    ({"tokens": [""] * 264}, "vocab: expected 1 to 4096 characters in each token, got 0"),
    ({"bos_token_id": 264}, "key 'tokenizer.ggml.bos_token_id': expected 0 <= id < 264, got 264"),
    ({"eos_token_id": -1}, "key 'tokenizer.ggml.eos_token_id': expected 0 <= id < 264, got -1"),
    ({"eot_token_id": 2**32 - 1}, "key 'tokenizer.ggml.eot_token_id': expected 0 <= id < 264, got"),
    ({"eom_token_id": "x"}, "key 'tokenizer.ggml.eom_token_id': expected 0 <= id < 264, got 'x'"),
    ({"add_bos_token": 1}, "key 'tokenizer.ggml.add_bos_token': expected true or false, got 1"),
    ({"add_space_prefix": "x"}, "key 'tokenizer.ggml.add_space_prefix': expected true or false"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), BAD_PIECES)
def test_keys_of_pieces_that_cannot_be_used_are_refused(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TokenizerError) as caught:
        gguf_tokenizer(PATH, pieces_keys(**changes))
    assert str(caught.value).startswith(f"a.gguf: {reason}")
    made(pieces_keys())


def test_a_byte_that_is_none_is_refused() -> None:
    keys = pieces_keys(("<0x-1>", 0.0, BYTE))
    with pytest.raises(
        TokenizerError, match=r"pieces: '<0x-1>': expected no byte piece of this te"
    ):
        gguf_tokenizer(PATH, keys)


BAD_TOKENS: list[tuple[dict[str, Any], str]] = [
    ({"pre": None}, f"key 'tokenizer.ggml.pre': expected one of {', '.join(PRE_TOKENIZERS)}, got "),
    ({"pre": "\x1b[m"}, r"key 'tokenizer.ggml.pre': expected one of llama-bpe, "),
    ({"tokens": ["a"] * 262}, "token 1: expected a new text, got 'a' of token 0 again"),
    ({"token_type": [7] * 262}, "token 0: type: expected a number from 1 to 6, got 7"),
    ({"merges": None}, "merges: expected a list, got null"),
    ({"merges": [1]}, "merges[0]: expected two tokens, got 1"),
    ({"merges": ["a b c"]}, "merges[0]: expected two tokens, got 'a b c'"),
    ({"merges": ["t h", "x y"]}, "merges[1]: expected tokens of the vocabulary, got 'xy'"),
    ({"merges": ["t h", "t h"]}, "merges: expected each once, got 't' and 'h' twice"),
    ({"token_type": [CONTROL] * 262, "merges": []}, "vocab: expected tokens in letters for bytes,"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), BAD_TOKENS)
def test_keys_of_byte_level_tokens_that_cannot_be_used_are_refused(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TokenizerError) as caught:
        gguf_tokenizer(PATH, keys_of(FILE, **changes))
    assert str(caught.value).startswith(f"a.gguf: {reason}")
    assert str(caught.value).isprintable()
    made(keys_of(FILE))
