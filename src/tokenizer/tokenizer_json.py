"""Read Hugging Face's `tokenizer.json` with byte-level or SentencePiece-style BPE.

The ids equal those of the `tokenizers` package with `encode_special_tokens = True`: text
never encodes to a special id. A token of the form `<|...|>` or `<｜...｜>`, such as
R1-Distill's `<｜User｜>`, or a token with a role is special even if its `special` flag is
not set.

Decoding includes the names of special tokens. For SentencePiece-style BPE, it follows
SentencePiece: the prepended space is dropped even after special tokens, and each invalid
byte becomes one U+FFFD, while `tokenizers` also replaces adjacent characters.

`truncation` and `padding` are ignored, as in transformers.
"""

import gc
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count, pairwise
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from ..untrusted import described, shown
from .added_tokens import AddedToken, spaces_taken
from .bpe import PAIR_SHIFT, Merges, listed_merges
from .config_files import (
    MAX_TOKENS,
    check_names,
    expect_kind,
    read_added_tokens,
    read_json,
    read_token_settings,
)
from .encoders import (
    ByteLevelEncoder,
    ByteLevelPipeline,
    MetaspaceEncoder,
    MetaspacePipeline,
    PieceEncoder,
    byte_token_text,
    character_symbols,
)
from .errors import mismatch
from .json_pipeline import read_pipeline, read_template
from .pre_tokenizers import METASPACE
from .tokenizer import Decoding, Tokenizer

_FILE_KEYS = {
    *("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer"),
    *("post_processor", "decoder", "model"),
}
_MODEL_KEYS = {
    *("type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"),
    *("fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"),
}
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")

# These bytes never occur in UTF-8, so no text needs tokens for them.
_NEVER_IN_TEXT = {0xC0, 0xC1, *range(0xF5, 0x100)}


def read_tokenizer_json(path: Path) -> Tokenizer:
    """Read a `tokenizer.json` and the special-token settings in the files next to it.

    Raises:
        TokenizerError: A file is damaged or requires an unknown feature.
    """
    settings = read_token_settings(path.parent)
    with collector_paused():
        file = read_json(path)
        model = _read_model(path, file)
        template = read_template(path, file.get("post_processor"))
        ends = [name for name in template or () if name]
        named = {*(name for name, _ in settings.names.values()), *ends}
        vocabulary = read_vocabulary(
            path, model.get("vocab"), file.get("added_tokens"), named
        )
        for name in ends:
            if name not in vocabulary.special:
                raise mismatch(
                    path, "post_processor", "a token of the vocabulary", shown(name)
                )
        unknown = model.get("unk_token")
        if unknown and unknown not in vocabulary.ids:
            rule = "a token of the vocabulary"
            raise mismatch(path, "model: unk_token", rule, described(unknown))
        pipeline = read_pipeline(path, file)
        encoder: PieceEncoder[Any]
        if isinstance(pipeline, ByteLevelPipeline):
            encoder, token_bytes = byte_level(path, model, vocabulary, pipeline)
            decoding = Decoding()
        else:
            encoder, token_bytes = _metaspace(path, model, vocabulary, pipeline)
            unknown_id = vocabulary.ids.get(str(unknown))
            decoding = Decoding(
                pipeline.drops_first_space, unknown_id=unknown_id, replaces_each_byte=True
            )
    return Tokenizer(
        token_bytes,
        vocabulary.special,
        encoder,
        settings.roles(vocabulary.special, len(vocabulary.names), template),
        decoding,
        spaces_taken(vocabulary.added),
    )


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which could not free any of the new objects."""
    was_on = gc.isenabled()
    try:
        try:
            gc.disable()
            yield
        finally:
            if was_on:
                gc.enable()
    finally:  # repeated because Ctrl-C may interrupt the block above
        if was_on:
            gc.enable()


def _check_keys(
    path: Path, where: str, value: Mapping[str, object], known: set[str]
) -> None:
    for key in value:
        if key not in known:
            raise mismatch(path, where, ", ".join(sorted(known)), shown(key))


def _read_model(path: Path, file: Mapping[str, object]) -> dict[str, object]:
    """Return `model` after checking every key except the vocabulary and the merges."""
    _check_keys(path, "keys", file, _FILE_KEYS)
    model: dict[str, object] = expect_kind(path, "model", file.get("model"), dict)
    _check_keys(path, "model: keys", model, _MODEL_KEYS)
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE":
        raise mismatch(path, "model: type", "BPE", described(kind))
    dropout = model.get("dropout")
    if dropout is not None and not (type(dropout) in (int, float) and dropout == 0):
        raise mismatch(path, "model: dropout", "null", described(dropout))
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        value = model.get(key)
        if value is not None and value != "":
            raise mismatch(path, f"model: {key}", "null", described(value))
    for key in ("fuse_unk", "byte_fallback", "ignore_merges"):
        expect_kind(path, f"model: {key}", model.setdefault(key, False), bool)
    if model.get("unk_token") is not None:
        expect_kind(path, "model: unk_token", model["unk_token"], str)
    return model


# The vocabulary and the merges


@dataclass(frozen=True)
class Vocabulary:
    """All tokens in a file. Each mapping is from a token's name to its id."""

    names: Sequence[str]  # the name of each token as in the file, indexed by id
    ids: Mapping[str, int]
    tokens: Mapping[str, int]  # tokens that text can encode to by merging
    added: Sequence[AddedToken]
    special: Mapping[str, int]  # tokens that text never encodes to


def read_vocabulary(
    path: Path, vocab: object, added_tokens: object, special_names: Collection[str]
) -> Vocabulary:
    """Return a file's tokens after checking that each id from 0 on has exactly one name.

    Tokens in `special_names` are special, as are tokens with the `special` flag.
    """
    vocab = expect_kind(path, "vocab", vocab, dict)
    if not 0 < len(vocab) <= MAX_TOKENS:
        raise mismatch(path, "vocab", f"1 to {MAX_TOKENS} tokens", len(vocab))
    if set(map(type, vocab.values())) != {int}:
        wrong = next(name for name, number in vocab.items() if type(number) is not int)
        expect_kind(path, f"vocab: {shown(wrong)}", vocab[wrong], int)
    ids: dict[str, int] = dict(vocab)
    added = read_added_tokens(path, added_tokens, special_names)
    for token in added:
        if ids.setdefault(token.text, token.token_id) != token.token_id:
            key = f"added_tokens: id of {shown(token.text)}"
            raise mismatch(path, key, f"{ids[token.text]} as in vocab", token.token_id)
    check_names(path, ids)
    names = sorted(ids, key=ids.__getitem__)
    for number, name in enumerate(names):
        if ids[name] != number:
            rule = f"{number}, because ids are 0, 1, 2... each once"
            raise mismatch(path, f"id of {shown(name)}", rule, ids[name])
    special = {name: ids[name] for name in special_names if name in ids}
    special |= {token.text: token.token_id for token in added if token.special}
    tokens = dict(vocab)
    for name in special:
        tokens.pop(name, None)
    special = dict(sorted(special.items(), key=lambda item: item[1]))
    return Vocabulary(names, ids, tokens, added, special)


def read_merges(
    path: Path, value: object, vocabulary: Vocabulary, unmerged: Sequence[str] = ()
) -> Merges:
    """Parse a list of merges, each written as `"a b"` or as `["a", "b"]`.

    Merges that involve a special token are dropped, because text never encodes to special
    tokens. No merge may contain a token from `unmerged`, which lists the byte tokens.
    """
    lefts, rights = _sides(path, expect_kind(path, "merges", value, list))
    try:
        return _listed(path, lefts, rights, vocabulary, unmerged)
    except (KeyError, TypeError):
        pairs = enumerate(zip(lefts, rights, strict=True))
        kept = [n for n, pair in pairs if _is_mergeable(path, n, pair, vocabulary)]
        lefts = [lefts[n] for n in kept]
        rights = [rights[n] for n in kept]
        return _listed(path, lefts, rights, vocabulary, unmerged)


def _sides(path: Path, value: list[Any]) -> tuple[list[str], list[str]]:
    """Return the left and right sides of merges.

    The items of a merge written as a list may still have any type.
    """
    if set(map(type, value)) == {str} and all(" " in merge for merge in value):
        parts = " ".join(value).split(" ")
        if len(parts) == 2 * len(value):
            return parts[::2], parts[1::2]
    pairs = value
    if value and isinstance(value[0], str):
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in value]
    if set(map(type, pairs)) - {list} or set(map(len, pairs)) - {2}:
        wrong = [type(pair) is list and len(pair) == 2 for pair in pairs].index(False)
        raise mismatch(path, f"merges[{wrong}]", "two tokens", described(value[wrong]))
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _listed(
    path: Path,
    lefts: list[str],
    rights: list[str],
    vocabulary: Vocabulary,
    unmerged: Sequence[str],
) -> Merges:
    """Convert merges to ids; raise KeyError or TypeError if a token is unknown."""
    find = vocabulary.tokens.__getitem__
    pairs = zip(map(find, lefts), map(find, rights), strict=True)
    keys = [left << PAIR_SHIFT | right for left, right in pairs]
    joined = list(map(find, map(add, lefts, rights)))
    if unmerged and (barred := {*unmerged}.intersection(chain(lefts, rights))):
        raise mismatch(path, "merges", "no merge of byte tokens", shown(min(barred)))
    merges = listed_merges(keys, joined)
    if len(merges.ranks) != len(keys):
        # A repeated pair has the rank of its last occurrence, so its first occurrence is
        # the index whose rank differs.
        twice = next(n for n, key in enumerate(keys) if merges.ranks[key] != n)
        got = f"{shown(lefts[twice])} and {shown(rights[twice])} twice"
        raise mismatch(path, "merges", "each once", got)
    return merges


def _is_mergeable(
    path: Path, number: int, pair: Sequence[object], vocabulary: Vocabulary
) -> bool:
    """Return whether a merge involves no special token.

    Raises:
        TokenizerError: A token is not in the vocabulary.
    """
    left, right = pair
    if not isinstance(left, str) or not isinstance(right, str):
        raise mismatch(path, f"merges[{number}]", "two texts", described(pair))
    for name in (left, right, left + right):
        if name not in vocabulary.tokens and name not in vocabulary.special:
            raise mismatch(
                path, f"merges[{number}]", "tokens of the vocabulary", described(name)
            )
    return all(name in vocabulary.tokens for name in (left, right, left + right))


# Byte-level


def byte_level(
    path: Path,
    model: Mapping[str, object],
    vocabulary: Vocabulary,
    pipeline: ByteLevelPipeline,
) -> tuple[ByteLevelEncoder, list[bytes]]:
    """Return the encoder for byte-level BPE, and the bytes of each token.

    `model` must contain `merges` and `ignore_merges`, and may contain `unk_token` and
    `byte_fallback`.
    """
    merges = read_merges(path, model.get("merges"), vocabulary)
    token_bytes, foreign = bytes_of_byte_level(vocabulary.names)
    for name in (*vocabulary.special, *(token.text for token in vocabulary.added)):
        token_bytes[vocabulary.ids[name]] = name.encode()
    merged = vocabulary.tokens.values()
    tokens = {token_bytes[number]: number for number in merged if number not in foreign}
    if not tokens:
        raise mismatch(path, "vocab", "tokens in GPT-2's letters for bytes", "none")
    missing = [
        b for b in range(256) if bytes([b]) not in tokens and b not in _NEVER_IN_TEXT
    ]
    if missing and (model.get("unk_token") or model.get("byte_fallback")):
        got = f"none for byte 0x{missing[0]:02x}"
        raise mismatch(path, "vocab", "a token for every single byte", got)
    encoder = ByteLevelEncoder(
        tokens, merges, pipeline, whole=bool(model["ignore_merges"])
    )
    _find_added_tokens(encoder, vocabulary)
    return encoder, token_bytes


def bytes_of_byte_level(names: Sequence[str]) -> tuple[list[bytes], set[int]]:
    """Convert tokens spelled with GPT-2's byte characters to bytes.

    A token with any other character is converted to UTF-8 instead. The second result
    contains the ids of these tokens.
    """
    letters = letters_of_bytes()
    # The last entry represents all characters beyond the table.
    byte_of = np.full(max(map(ord, letters)) + 2, -1, np.int16)
    byte_of[[*map(ord, letters)]] = range(0x100)
    codes = np.frombuffer("".join(names).encode("utf-32-le"), np.uint32)
    values = byte_of[np.minimum(codes, len(byte_of) - 1)]
    data = values.astype(np.uint8).tobytes()
    bounds = list(accumulate(map(len, names), initial=0))
    tokens = [data[start:end] for start, end in pairwise(bounds)]
    token_indices = np.searchsorted(bounds, np.flatnonzero(values < 0), "right") - 1
    foreign = set(token_indices.tolist())
    for number in foreign:
        tokens[number] = names[number].encode()
    return tokens, foreign


def letters_of_bytes() -> list[str]:
    """Return the printable character that represents each byte in GPT-2's vocabulary.

    Bytes that are printable in Latin-1 represent themselves. The other bytes are mapped,
    in order, to the characters from U+0100 on.

    Source: `bytes_to_unicode` in openai/gpt-2 src/encoder.py, commit
    9b63575ef42771a015060c964af2c3da4cf7c8ab.
    """
    others = count(0x100)
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return [chr(byte if byte in printable else next(others)) for byte in range(0x100)]


# SentencePiece-style


def _metaspace(
    path: Path,
    model: Mapping[str, object],
    vocabulary: Vocabulary,
    pipeline: MetaspacePipeline,
) -> tuple[MetaspaceEncoder, list[bytes]]:
    if not model["byte_fallback"]:
        raise mismatch(path, "model: byte_fallback", "true", "false")
    byte_names = [*map(byte_token_text, range(256))]
    missing = next((name for name in byte_names if name not in vocabulary.ids), None)
    if missing:
        raise mismatch(path, "vocab", "a token for every single byte", f"no {missing}")
    byte_ids = [vocabulary.ids[name] for name in byte_names]
    encoder = MetaspaceEncoder(
        character_symbols(vocabulary.tokens, len(vocabulary.names)),
        vocabulary.tokens,
        read_merges(path, model.get("merges"), vocabulary, byte_names),
        byte_ids,
        pipeline,
        whole=bool(model["ignore_merges"]),
    )
    token_bytes = [*map(_metaspace_bytes, vocabulary.names)]
    for token in vocabulary.added:
        # A normalized token matches together with the space in front of it, so its bytes
        # include that space.
        if token.normalized:
            token_bytes[token.token_id] = _metaspace_bytes(encoder.normalize(token.text))
    for name, number in vocabulary.special.items():
        token_bytes[number] = name.encode()
    _find_added_tokens(encoder, vocabulary)
    return encoder, token_bytes


def _metaspace_bytes(name: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(METASPACE, " ").encode()


# Added tokens


def _find_added_tokens(encoder: PieceEncoder[Any], vocabulary: Vocabulary) -> None:
    """Make the encoder match the added tokens, unless all of them are special."""
    if not all(token.special for token in vocabulary.added):
        raw = (token for token in vocabulary.added if not token.normalized)
        others = (token for token in vocabulary.added if token.normalized)
        encoder.find(
            raw, (replace(token, text=encoder.normalize(token.text)) for token in others)
        )
