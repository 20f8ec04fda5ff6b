"""The tokens that Hugging Face's files add to a bare SentencePiece model.

`added_tokens.json` gives each an id and nothing else; it is special where `tokenizer_config.json`
or `special_tokens_map.json` names it for a role or lists it. Newer files say all of it in
`added_tokens_decoder` of `tokenizer_config.json`, which then goes first.

Source: huggingface/transformers src/transformers/tokenization_utils_base.py
(`_from_pretrained`) and tokenization_utils_sentencepiece.py, v5.23.0.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from .added_tokens import AddedToken
from .errors import mismatch, shown
from .files import kind_of, read_json
from .json_vocabulary import check_names, read_added_tokens
from .roles import CONFIG_FILE, TOKENS_MAP_FILE, token_name
from .sentencepiece_file import SentencePieceModel

_ADDED_FILE = "added_tokens.json"
_MOST_DIGITS = 18
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def read_tokens_beside(directory: Path, model: SentencePieceModel) -> list[AddedToken]:
    """Read the tokens that are added to the pieces of a SentencePiece model.

    Args:
        directory: holds the model.
        model: what it says; its special pieces are special here too.

    Returns:
        The tokens in the order of their ids. A piece may be among them, with its own id; the other
        ids follow the pieces without a gap.

    Raises:
        TokenizerError: for a file that is not what it has to be, an id that is another's or leaves
            a gap, and for what cannot be done: words of their own with `"legacy": false`.
    """
    config = _read(directory / CONFIG_FILE)
    special = {*model.special, *_special_names(directory / CONFIG_FILE, config)}
    special |= _special_names(directory / TOKENS_MAP_FILE, _read(directory / TOKENS_MAP_FILE))
    path, entries = _entries(directory, config)
    tokens = sorted(read_added_tokens(path, entries, special), key=lambda token: token.token_id)
    if tokens:
        check_names(path, {token.text: token.token_id for token in tokens})
    _check_ids(path, tokens, model.ids)
    if any(not token.special for token in tokens) and config.get("legacy", True) is not True:
        what = "legacy beside added tokens that are not special"
        raise mismatch(directory / CONFIG_FILE, what, "true", _shown_flag(config["legacy"]))
    return tokens


def _read(path: Path) -> dict[str, object]:
    return read_json(path) if os.path.exists(path) else {}


def _shown_flag(value: object) -> str:
    return "false" if value is False else kind_of(value)


def _entries(directory: Path, config: Mapping[str, object]) -> tuple[Path, list[object]]:
    """Give the file that lists the tokens, and its entries as `tokenizer.json` has them."""
    decoder = config.get("added_tokens_decoder")
    if decoder is None:
        path = directory / _ADDED_FILE
        return path, [{"id": number, "content": text} for text, number in _read(path).items()]
    path = directory / CONFIG_FILE
    if not isinstance(decoder, dict):
        raise mismatch(path, "added_tokens_decoder", "an object", kind_of(decoder))
    entries: list[object] = []
    for key, value in decoder.items():
        if not (key.isascii() and key.isdigit() and len(key) <= _MOST_DIGITS):
            raise mismatch(path, "added_tokens_decoder", "ids", f"'{shown(key)}'")
        entries.append(value | {"id": int(key)} if isinstance(value, dict) else value)
    return path, entries


def _special_names(path: Path, config: Mapping[str, object]) -> set[str]:
    """Give the tokens that a file names for a role or lists as special."""
    named: list[tuple[str, object]] = [(f"{r}_token", config.get(f"{r}_token")) for r in _ROLES]
    for key in _LISTS:
        value = config.get(key)
        if isinstance(value, dict):  # a name for each
            value = list(value.values())
        if not isinstance(value, list | None):
            raise mismatch(path, key, "a list or an object", kind_of(value))
        named += [(key, entry) for entry in value or ()]
    return {name for key, value in named if (name := token_name(path, key, value)) is not None}


def _check_ids(path: Path, tokens: Sequence[AddedToken], pieces: Mapping[str, int]) -> None:
    free = len(pieces)
    for token in tokens:
        what = f"id of '{shown(token.text)}'"
        if token.text in pieces:
            if token.token_id != pieces[token.text]:
                raise mismatch(
                    path, what, f"{pieces[token.text]}, that of the piece", token.token_id
                )
        elif token.token_id != free:
            raise mismatch(path, what, f"{free}, the next after the pieces", token.token_id)
        else:
            free += 1
