"""Read a tokenizer's JSON files, which mainly describe special and added tokens.

`tokenizer_config.json` and `special_tokens_map.json` name the beginning-of-text and
end-of-text tokens. `generation_config.json` lists the ids that end an answer.
`added_tokens.json` adds tokens to a bare SentencePiece model. Newer models list these in
`added_tokens_decoder` in `tokenizer_config.json`, which takes precedence.

Source: huggingface/transformers src/transformers/tokenization_utils_base.py
(`_from_pretrained`) and tokenization_utils_sentencepiece.py, v5.23.0.
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..untrusted import JSON_KINDS, described, read_json_object, read_whole, shown
from .added_tokens import AddedToken
from .errors import TokenizerError, mismatch
from .tokenizer import Roles

_T = TypeVar("_T")

# Maximum file size. The largest known file, Llama 3's `tokenizer.json`, has about 17 MB.
MAX_FILE_BYTES = 64 << 20
# Maximum number of tokens. Gemma has 262,144.
MAX_TOKENS = 1 << 19
# Maximum number of JSON values. Llama 3 has about 10 for each of its 128,000 tokens.
_MAX_JSON_VALUES = 1 << 22
# Maximum token length, in bytes or characters. Llama 3 has tokens of up to 128 bytes.
MAX_TOKEN_LENGTH = 4096

CONFIG_FILE = "tokenizer_config.json"
_TOKENS_MAP_FILE = "special_tokens_map.json"
_GENERATION_FILE = "generation_config.json"
_ADDED_FILE = "added_tokens.json"

# If no file names the beginning-of-text and end-of-text tokens, these names are tried.
_BEGIN_NAMES = ("<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<s>")
_END_NAMES = ("<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<|endoftext|>")

# Special tokens with these names always end an answer.
_STOP_NAMES = (*_END_NAMES, "<|eom_id|>", "<|eot_id|>", "<|im_end|>")

_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_MOST_DIGITS = 18

# The flags of an added token, in the order of the `AddedToken` fields.
_FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")
# A token of this form, such as a turn marker, is special even if its flag is not set.
MARKER = re.compile("<[|｜].*[|｜]>", re.DOTALL)


def is_sentencepiece_file(path: Path) -> bool:
    """Return whether a file is a SentencePiece model, judging by its first bytes.

    A SentencePiece model begins with the tag of a piece, a one-byte length, and the tag
    of the piece's text. Both tags are newline characters, and a file of ranks never
    begins with a newline.

    Raises:
        TokenizerError: The file cannot be read.
    """
    return read_whole(path, MAX_FILE_BYTES, TokenizerError)[:3:2] == b"\n\n"


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON file that contains one object.

    Raises:
        TokenizerError: The file is too large or is not a valid JSON object.
    """
    return read_json_object(path, MAX_FILE_BYTES, TokenizerError, _MAX_JSON_VALUES)


def expect_kind(path: Path, key: str, value: object, kind: type[_T]) -> _T:
    """Return a JSON value after checking its type.

    Args:
        path: The file, for the error message.
        key: The location in the file, for the error message.
        value: The value.
        kind: The expected type: dict, list, str, bool or int. A bool is not an int.

    Raises:
        TokenizerError: The value has another type.
    """
    if type(value) is not kind:
        raise mismatch(path, key, JSON_KINDS[kind], described(value))
    return value


Template = tuple[str | None, str | None]
"""The names of the tokens that the tokenizer file adds before and after text, or None."""


@dataclass(frozen=True)
class TokenSettings:
    """The token roles read from the files next to a tokenizer."""

    # bos_token, eos_token and unk_token -> (token, file that names it).
    names: Mapping[str, tuple[str, Path]]
    # Whether the model's input begins with the beginning-of-text token, or None if no
    # file specifies it.
    adds_bos: bool | None
    end_ids: frozenset[int]  # ids that end an answer
    end_ids_source: Path  # the file that lists `end_ids`

    def roles(
        self,
        special_tokens: Mapping[str, int],
        vocab_size: int,
        template: Template | None,
    ) -> Roles:
        """Return the roles of a tokenizer's special ids.

        Args:
            special_tokens: A mapping from each special token to its id.
            vocab_size: The tokenizer's vocabulary size. Larger ids in `end_ids` are
                dropped, because a model may have more rows than the tokenizer has tokens.
            template: The tokens that the tokenizer file adds around the text, if known.

        Raises:
            TokenizerError: A file names a token that the tokenizer does not have, or an
                id is negative.
        """
        first, last = template or (None, None)
        begin = self._name("bos_token", first, _BEGIN_NAMES, special_tokens)
        end = self._name("eos_token", last, _END_NAMES, special_tokens)
        for number in self.end_ids:
            if number < 0:
                raise mismatch(self.end_ids_source, "eos_token_id", "id >= 0", number)
        stop_ids = {
            special_tokens[name] for name in _STOP_NAMES if name in special_tokens
        }
        if end is not None:
            stop_ids.add(special_tokens[end])
        adds_bos = self.adds_bos
        if adds_bos is None:
            adds_bos = begin in _BEGIN_NAMES if template is None else first is not None
        return Roles(
            bos_id=None if begin is None else special_tokens[begin],
            eos_id=None if end is None else special_tokens[end],
            stop_ids=frozenset(n for n in self.end_ids if n < vocab_size) | stop_ids,
            adds_bos=adds_bos and begin is not None,
        )

    def _name(
        self,
        role: str,
        by_template: str | None,
        known: tuple[str, ...],
        special_tokens: Mapping[str, int],
    ) -> str | None:
        """Return the token for a role, from the settings, the template or known names."""
        if role not in self.names:
            return by_template or next((n for n in known if n in special_tokens), None)
        name, source = self.names[role]
        if name not in special_tokens:
            raise mismatch(source, role, "a special token of the tokenizer", shown(name))
        return name


def read_token_settings(directory: Path) -> TokenSettings:
    """Read the token roles from the files next to a tokenizer.

    `tokenizer_config.json` takes precedence over `special_tokens_map.json`.
    """
    names: dict[str, tuple[str, Path]] = {}
    for path in (directory / _TOKENS_MAP_FILE, directory / CONFIG_FILE):
        config = _read(path)
        for role in ("bos_token", "eos_token", "unk_token"):
            name = _token_name(path, role, config.get(role))
            if name is not None:
                names[role] = name, path
    adds_bos = config.get("add_bos_token")
    if adds_bos is not None:
        adds_bos = expect_kind(path, "add_bos_token", adds_bos, bool)
    path = directory / _GENERATION_FILE
    listed = _read(path).get("eos_token_id")
    if not isinstance(listed, list):
        listed = [] if listed is None else [listed]
    end_ids = frozenset(
        expect_kind(path, "eos_token_id", number, int) for number in listed
    )
    return TokenSettings(names, adds_bos, end_ids, path)


def _read(path: Path) -> dict[str, object]:
    return read_json(path) if os.path.exists(path) else {}


def _token_name(path: Path, role: str, value: object) -> str | None:
    """Return the token in a role's value, or None if the value is null or empty.

    The value is either a string or an object with a `content` key.
    """
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise mismatch(path, role, "a text or an object with content", described(value))
    return value


# Added tokens


def read_added_tokens(
    path: Path, value: object, special_names: Collection[str]
) -> list[AddedToken]:
    """Parse a list of added tokens, each with an id, a unique content and flags.

    Tokens in `special_names` are special, as are tokens with the `special` flag. Null is
    treated as an empty list.
    """
    if value is None:
        return []
    tokens: dict[str, AddedToken] = {}
    for number, entry in enumerate(expect_kind(path, "added_tokens", value, list)):
        key = f"added_tokens[{number}]"
        entry = expect_kind(path, key, entry, dict)
        token_id = expect_kind(path, f"{key}: id", entry.get("id"), int)
        text = expect_kind(path, f"{key}: content", entry.get("content"), str)
        flags = {
            name: expect_kind(path, f"{key}: {name}", entry.get(name, False), bool)
            for name in _FLAGS
        }
        if text in tokens:
            raise mismatch(path, f"{key}: content", "a new text", f"{shown(text)} again")
        flags["special"] |= text in special_names or bool(MARKER.fullmatch(text))
        if flags.pop("single_word") and not flags["special"]:
            raise mismatch(path, f"{key}: single_word", "false", "true")
        tokens[text] = AddedToken(text, token_id, *flags.values())
    return list(tokens.values())


def check_names(path: Path, names: Mapping[str, int]) -> None:
    """Check that no token is empty, is too long, or contains surrogates.

    `names` must not be empty.
    """
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise mismatch(
            path, "vocab", "text without surrogates", "a lone surrogate"
        ) from None
    longest = max(names, key=len)
    if len(longest) > MAX_TOKEN_LENGTH or "" in names:
        expected = f"1 to {MAX_TOKEN_LENGTH} characters in each token"
        got = len(longest)
        raise mismatch(path, "vocab", expected, 0 if "" in names else got)


def read_added_tokens_of_config(
    directory: Path, pieces: Mapping[str, int], special_pieces: Collection[str]
) -> list[AddedToken]:
    """Read the tokens that are added to a SentencePiece model, sorted by id.

    An added token that is also a piece must have the piece's id. The ids of the other
    added tokens must follow the pieces without a gap. A token is special if it is in
    `special_pieces`, or if `tokenizer_config.json` or `special_tokens_map.json` assigns a
    role to it or lists it as special. With `"legacy": false`, tokens that are not special
    are rejected.
    """
    config_path = directory / CONFIG_FILE
    map_path = directory / _TOKENS_MAP_FILE
    config = _read(config_path)
    special = {*special_pieces, *_special_names(config_path, config)}
    special |= _special_names(map_path, _read(map_path))
    path, entries = _entries(directory, config)
    tokens = sorted(
        read_added_tokens(path, entries, special), key=lambda token: token.token_id
    )
    if tokens:
        check_names(path, {token.text: token.token_id for token in tokens})
    free = len(pieces)
    for token in tokens:
        expected = pieces.get(token.text, free)
        if token.token_id != expected:
            reason = (
                "the id of the piece"
                if token.text in pieces
                else "the next after the pieces"
            )
            key = f"id of {shown(token.text)}"
            raise mismatch(path, key, f"{expected}, {reason}", token.token_id)
        free += token.text not in pieces
    legacy = config.get("legacy", True)
    if legacy is not True and not all(token.special for token in tokens):
        key = "legacy with added tokens that are not special"
        raise mismatch(config_path, key, "true", described(legacy))
    return tokens


def _entries(directory: Path, config: Mapping[str, object]) -> tuple[Path, list[object]]:
    """Return the file that lists the added tokens, and its entries.

    The entries have the same form as in `tokenizer.json`.
    """
    decoder = config.get("added_tokens_decoder")
    if decoder is None:
        path = directory / _ADDED_FILE
        return path, [
            {"id": number, "content": text} for text, number in _read(path).items()
        ]
    path = directory / CONFIG_FILE
    entries: list[object] = []
    for key, value in expect_kind(path, "added_tokens_decoder", decoder, dict).items():
        if not (key.isascii() and key.isdigit() and len(key) <= _MOST_DIGITS):
            raise mismatch(path, "added_tokens_decoder", "ids", shown(key))
        entries.append(value | {"id": int(key)} if isinstance(value, dict) else value)
    return path, entries


def _special_names(path: Path, config: Mapping[str, object]) -> set[str]:
    """Return the tokens that a file assigns a role or lists as special."""
    names = {
        _token_name(path, f"{role}_token", config.get(f"{role}_token")) for role in _ROLES
    }
    for key in _LISTS:
        value = config.get(key)
        if isinstance(value, dict):  # named tokens
            value = list(value.values())
        listed = [] if value is None else expect_kind(path, key, value, list)
        names |= {_token_name(path, key, entry) for entry in listed}
    return {name for name in names if name is not None}
